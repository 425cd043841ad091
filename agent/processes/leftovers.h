// What launchers that are gone left on this host: when guardian and agent were killed in one
// moment, nobody was there to clean up. Found by the job's cookie in environments and names. Shell;
// run in a process of its own beside the start: it reads every process's environment, which may
// take long, and for ever where a process hangs in the kernel.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace ddprun::agent {

// What is known of a process.
struct Process {
  pid_t parent = 0;
  std::optional<std::string> cookie{};  // text of a valid one

  bool operator==(const Process&) const = default;
};

// The processes that are certainly leftovers: they carry the cookie of a launcher that is gone, and
// so does every ancestor up to one whose parent is init. A cookie proves little by itself: a worker
// may resubmit its job, or talk to a daemon that starts something, with its own environment; so
// what has a living parent outside is let be, and so are cookies that `self` or an ancestor of it
// carries. Pure.
std::vector<pid_t> orphans_of(const std::map<pid_t, Process>& processes,
                              const std::set<std::string>& gone, pid_t self);

// Ends processes and removes cgroups and shared memory of jobs whose launcher no longer runs.
// Returns how many processes were ended.
std::size_t end_leftovers();

}  // namespace ddprun::agent
