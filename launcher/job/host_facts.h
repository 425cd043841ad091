// The real answers to what options.h and command.h ask: CPUs, accelerators, files, PATH, a fresh
// id. A thin shell over /proc, /dev and the file system. It decides nothing. Main thread, at start.
#pragma once

#include <string>
#include <string_view>

#include "launcher/job/command.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {

// CPUs, accelerators and ids of this machine. `env` is asked for the variables of accelerators.h.
HostFacts real_host_facts(const EnvLookup& env);

// Files, PATH and interpreters of this machine. `env` is asked for PATH and PYTHON_EXEC.
CommandFacts real_command_facts(const EnvLookup& env);

}  // namespace ddprun::launcher
