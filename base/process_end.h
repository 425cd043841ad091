// Whether a process is dead, and a wait for it. A descriptor stands for a process and tells of its
// end. If the kernel makes none (new_calls.h), the process is looked at again and again. The kernel
// gives a pid out again after the process was reaped; a descriptor never means another process.
// This sends no signal and reaps nothing. Any thread.
#pragma once

#include <sys/types.h>

#include <chrono>

#include "base/file_handle.h"

namespace ddprun {

// A descriptor of the process (pidfd_open(2), Linux 5.3). poll() finds it readable once the process
// is dead. Holds -1 if the process is gone (errno is ESRCH), or no descriptor can be had.
FileHandle open_pidfd(pid_t pid);

// Returns whether the process is gone, or a zombie. Certain for a child of ours; of another one it
// reads /proc/<pid>/stat.
bool has_ended(pid_t pid);

// Waits for the end of the process, `until` at the latest. Returns whether it has ended.
bool ends_by(pid_t pid, std::chrono::steady_clock::time_point until);

}  // namespace ddprun
