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
  pid_t session = 0;                    // pid of the session's leader, dead or alive
  bool is_reaper = false;               // known to take in orphans: an init of its own kind

  bool operator==(const Process&) const = default;
};

// The processes that are certainly leftovers: they carry the cookie of a launcher that is gone, and
// so does every ancestor up to one whose parent took it in when its own parent died. A cookie proves
// little by itself: a worker may resubmit its job, or talk to a daemon that starts something, with
// its own environment. So what has a living parent outside is let be, and so are cookies that `self`
// or an ancestor of it carries.
//
// Orphans go to init, or to the nearest ancestor that asked for them (prctl(2),
// PR_SET_CHILD_SUBREAPER: `systemd --user`, the first process of many containers). The kernel does
// not tell who asked. A process took an orphan in if it is init or of that kind; if the orphan's
// session is neither its own nor the parent's, so that it was inherited from somebody who is gone;
// or if it is an ancestor of `self` and the orphan is not of its session. Pure.
std::vector<pid_t> orphans_of(const std::map<pid_t, Process>& processes,
                              const std::set<std::string>& gone, pid_t self);

// Ends processes and removes cgroups and shared memory of jobs whose launcher no longer runs.
// Returns how many processes were ended.
std::size_t end_leftovers();

}  // namespace ddprun::agent
