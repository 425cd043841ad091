// Why a worker got a SIGKILL that ddprun did not send. Mostly it was the kernel's out-of-memory
// killer. The kernel's log names its victim and the cgroup (Linux mm/oom_kill.c, dump_oom_victim).
// The files of the cgroup have its limit and its peak. Without a readable log the cgroup's count of
// kills must do. Nothing here watches memory or prevents a kill. The parsing is pure; KernelLog and
// the functions on cgroups are shells. Runs on the loop's thread. Owned by PostMortem.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_handle.h"
#include "base/memory_cgroup.h"

namespace ddprun::agent {

// One kill by the out-of-memory killer. No value: not known, or there is no limit.
struct OutOfMemory {
  std::string cgroup{};  // its limit was hit; empty: the whole host had no memory left
  std::optional<std::uint64_t> limit_bytes{};
  std::optional<std::uint64_t> peak_bytes{};  // the most that the cgroup ever used

  bool operator==(const OutOfMemory&) const = default;
};

// Looks for the kill of `pid` in the kernel's lines, the oldest of which comes first. Limit and
// peak are set only if the log tells them. Nothing if the log does not name this pid.
std::optional<OutOfMemory> find_out_of_memory(const std::vector<std::string>& kernel_lines,
                                              int pid);

// The last kill of a process in `cgroup`, or below it. Nothing if there was none. "/": of any
// process.
std::optional<OutOfMemory> last_out_of_memory(const std::vector<std::string>& kernel_lines,
                                              std::string_view cgroup);

// Whether a line tells of a child that got SIGKILL, as PyTorch's data loader, Python's pools and
// shells say it.
bool is_word_of_a_kill(std::string_view line);

// One line for people: "out of memory in cgroup /job: limit 64.0 MiB, peak 64.0 MiB".
std::string describe(const OutOfMemory& record);

// The kernel's messages since open(). Reads /dev/kmsg, which only root may do, or anybody if the
// sysctl kernel.dmesg_restrict is 0.
class KernelLog {
 public:
  explicit KernelLog(const char* path = "/dev/kmsg") : path_(path) {}
  // The first call opens the log at its end; later ones do nothing.
  void open();
  bool can_be_read() const { return log_.get() >= 0; }
  // The lines since the last call, without their numeric heads. Empty if the log may not be read.
  std::vector<std::string> read_new();

 private:
  const char* path_;
  bool is_open_ = false;  // or cannot be opened
  FileHandle log_;
};

// Returns how many processes the out-of-memory killer has killed in the cgroup to which this
// process's memory is charged. That is its own, or the nearest above it with the memory controller.
// The value is `oom_kill` of memory.events (version 2) or memory.oom_control (version 1). Both
// count where the victim is, whatever cgroup had no memory left. Nothing if there is no such file
// to read.
std::optional<std::uint64_t> own_cgroup_oom_kills();
// That cgroup, or "/" if there is none.
std::string own_charged_cgroup();
// The cgroup that had no memory left when a process of this one was killed: exhausted_cgroup().
OutOfMemory own_cgroup_memory();
// Chooses among a cgroup and those above it: the lowest that has used 99 % of its limit or more.
// If none has, it is the one that came nearest to its limit. If none has a limit, it is the cgroup
// itself. A task of a scheduler mostly has no limit of its own: its step or its job has. `cgroup`:
// as own_memory_cgroup() answers, and what `folder.path` ends with.
OutOfMemory exhausted_cgroup(MemoryFolder folder, std::string cgroup);
// Adds the limit, if `record` has none, and the peak from the files of its cgroup. Values that
// cannot be read stay as they are.
void complete(OutOfMemory& record);

// Explains a kill of which the worker itself could say nothing. It asks the kernel's log first. In
// a container the log is mostly closed, and it names processes by the host's pids. Then the
// cgroup's count of kills decides.
class KillExplainer {
 public:
  using Count = std::function<std::optional<std::uint64_t>()>;
  using Cgroup = std::function<std::string()>;

  // `own_cgroup`: the one whose kills are counted.
  explicit KillExplainer(KernelLog log = KernelLog(), Count oom_kills = own_cgroup_oom_kills,
                         Cgroup own_cgroup = own_charged_cgroup);

  // Call it before the workers of an attempt start: kills that were counted until now say nothing
  // about them.
  void attempt_started();
  // Call it once they run: to open the log takes time, and the first worker need not wait for it.
  // A kill before that is known by the count alone.
  void workers_started() { log_.open(); }
  // One line about the SIGKILL of `pid`, a worker of this attempt. Call it only if ddprun did not
  // send that signal.
  std::string explain(int pid);
  // Returns whether the kernel killed a process of our cgroup for want of memory in this attempt.
  bool has_killed_here() const;
  // One line if the kernel has killed another process of this attempt for want of memory. That may
  // be a data loader, or the program under a shell. Else empty. `says_killed`: the worker itself
  // tells of a SIGKILL, as is_word_of_a_kill() finds it or by exit code 137. Without that a kill
  // counts only in our own cgroup.
  std::string explain_child(bool says_killed);

 private:
  void read_log();
  std::optional<OutOfMemory> last_in_log(std::string_view cgroup) const;

  KernelLog log_;
  Count oom_kills_;
  Cgroup own_cgroup_;
  std::vector<std::string> lines_;             // of the log, since the job's start
  std::size_t lines_before_ = 0;               // of them, when this attempt began
  std::optional<std::uint64_t> kills_before_;  // the count when this attempt began
};

}  // namespace ddprun::agent
