// Why a worker got a SIGKILL that nobody here sent: the out-of-memory killer's record. The kernel's
// log names victim and cgroup (Linux mm/oom_kill.c, dump_oom_victim); the cgroup has limit and
// peak. The words are parsed purely; KernelLog is the shell over /dev/kmsg (root or an open log
// only).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/file_handle.h"

namespace ddprun::agent {

struct OutOfMemory {
  std::string cgroup{};  // whose limit was hit; empty: the whole host ran out
  std::optional<std::uint64_t> limit_bytes{};
  std::optional<std::uint64_t> peak_bytes{};

  bool operator==(const OutOfMemory&) const = default;
};

// The kill of `pid` in the kernel's lines, oldest first. Limit and peak where the log tells them.
std::optional<OutOfMemory> find_out_of_memory(const std::vector<std::string>& kernel_lines,
                                              int pid);

// One line for people: "out of memory in cgroup /job: limit 64.0 MiB, peak 64.0 MiB".
std::string describe(const OutOfMemory& record);

// The kernel's messages since this object was made.
class KernelLog {
 public:
  explicit KernelLog(const char* path = "/dev/kmsg");
  bool can_be_read() const { return log_.get() >= 0; }
  // Lines without their numeric head. Empty where the log may not be read.
  std::vector<std::string> read_new();

 private:
  FileHandle log_;
};

// How often the out-of-memory killer struck in the memory cgroup of this process (memory.events or
// memory.oom_control, `oom_kill`); nothing where there is none to be read.
std::optional<std::uint64_t> own_cgroup_oom_kills();
// That cgroup with its limit and peak.
OutOfMemory own_cgroup_memory();
// Completes `record` from its cgroup's files where the log did not tell.
void complete(OutOfMemory& record);

// The word on a silent kill: the kernel's log where it may be read and names the victim (in a
// container it is closed, and its pids are the host's), else the cgroup's count.
class KillExplainer {
 public:
  using Count = std::function<std::optional<std::uint64_t>()>;

  // What was logged and counted before is not of this job.
  explicit KillExplainer(KernelLog log = KernelLog(), Count oom_kills = own_cgroup_oom_kills);

  // Kills that were counted until now say nothing of this attempt's workers.
  void attempt_started() { kills_before_ = oom_kills_(); }
  // One line on the SIGKILL of `pid`, a worker of this attempt.
  std::string explain(int pid);

 private:
  KernelLog log_;
  Count oom_kills_;
  std::vector<std::string> lines_;  // since the job's start
  std::optional<std::uint64_t> kills_before_;
};

}  // namespace ddprun::agent
