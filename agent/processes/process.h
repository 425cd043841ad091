// A process by its number: what /proc says of it, and a descriptor that holds it, so that a number
// which is used again cannot be taken for it. Shell; any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "proto/file_handle.h"

namespace ddprun::agent {

// From /proc/<pid>/stat (proc_pid_stat(5)).
struct ProcessStat {
  char state = '?';  // 'Z': dead and not yet reaped
  pid_t parent = 0;
  pid_t session = 0;
  std::uint64_t started = 0;  // clock ticks after boot

  bool is_dead() const { return state == 'Z' || state == 'X'; }
};

// The content of /proc/<pid>/<name>. Empty where the process is gone, also where it goes while its
// file is read, and where it is not ours to read. No stream is used: one throws when a read fails.
std::string read_proc_file(pid_t pid, std::string_view name);

// Nothing where the process is gone or not ours to read.
std::optional<ProcessStat> read_process_stat(pid_t pid);

// comm; empty where the process is gone.
std::string process_name(pid_t pid);

// The kernel function that a sleeping process waits in; "?" where the kernel does not say.
std::string wait_channel(pid_t pid);

// Readable once the process is dead (pidfd_open(2), Linux 5.3); -1 where it is gone.
FileHandle open_pidfd(pid_t pid);

}  // namespace ddprun::agent
