// The variables of a standby in /proc/<pid>/environ. People and programs find the worker of a rank
// there. The file shows the memory that execve() filled (proc_pid_environ(5)), and not what the
// process has set since. So a standby is started with names that are none. When it becomes the
// worker, that memory is brought up to date.
#pragma once

#include <sys/types.h>

#include "agent/core/worker_variables.h"

namespace ddprun::agent {

// Renames kHiddenVariables (proto/standby.h).
void hide_variables(Variables& env);

// Shows the variables of `env` in the process's file. They must be there already, hidden or not,
// and have the same length. Does nothing where the kernel does not let us write.
void show_environment(pid_t pid, const Variables& env);

}  // namespace ddprun::agent
