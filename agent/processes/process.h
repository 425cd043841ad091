// The facts of a process in /proc. The kernel gives a pid out again after the process was reaped.
// All but kill_process() only read. Any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_handle.h"

namespace ddprun::agent {

// Some fields of /proc/<pid>/stat (proc_pid_stat(5)).
struct ProcessStat {
  char state = '?';  // 'Z': dead and not yet reaped; 'D': in uninterruptible sleep
  pid_t parent = 0;
  pid_t session = 0;
  std::uint64_t started = 0;  // clock ticks after boot

  bool is_dead() const { return state == 'Z' || state == 'X'; }
};

// The whole content of /proc/<pid>/<name>. Empty if the process is gone, if it ends while we read,
// or if we may not read the file. An empty file looks the same.
std::string read_proc_file(pid_t pid, std::string_view name);

// Nothing if the process is gone, or we may not read its file.
std::optional<ProcessStat> read_process_stat(pid_t pid);

// A number of that file, by its place as proc_pid_stat(5) counts, from 4 on. Nothing in the same
// cases.
std::optional<std::int64_t> read_stat_number(pid_t pid, int place);

// The numbers at these places, both included, by one read. None in the same cases.
std::vector<std::int64_t> read_stat_numbers(pid_t pid, int first, int last);

// The memory of it that is resident, in bytes. Nothing in the same cases.
std::optional<std::uint64_t> resident_bytes(pid_t pid);

// Its comm, at most 15 characters (proc_pid_comm(5)); empty if the process is gone.
std::string process_name(pid_t pid);

// The kernel function in which a process sleeps; "?" if it does not sleep or the kernel hides it.
std::string wait_channel(pid_t pid);

// Returns whether /proc has our pid namespace's numbers. It has others after `unshare --pid`
// without a new mount of /proc. Then /proc/self does not lead to the pid that getpid() answers.
bool proc_is_ours();

// Sends SIGKILL by `process`, a descriptor of `pid`. The caller compares the process with the one
// it means after it has opened the descriptor. Without descriptors the signal goes to `pid`: one
// comes again only after all others have been used. Returns whether it was sent.
bool kill_process(const FileHandle& process, pid_t pid);

}  // namespace ddprun::agent
