// Ends what launchers that are gone left on this host. If guardian and agent are killed in one
// moment, nobody cleans up. The job's cookie shows what they left: it is in environments and names.
// Only a free lock shows that the launcher is gone (owner_lock.h). Nobody is ended on a guess.
// It does I/O. Run it in a process of its own, beside the start of the job. It reads the
// environment of every process. That may take long, and for ever if one hangs in the kernel.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace ddprun::agent {

// The facts of a process that orphans_of() must know.
struct ProcessEntry {
  pid_t parent = 0;
  std::optional<std::string> cookie{};  // text of a valid one
  pid_t session = 0;                    // pid of the session's leader, which may be dead
  bool is_reaper = false;               // we know that it takes in orphans, as init does

  bool operator==(const ProcessEntry&) const = default;
};

// The processes that are certainly orphans. `gone` are the cookies of launchers that are gone.
// `self` is this process. Pure.
//
// A cookie alone proves little. A worker may start its job again, or ask a daemon to start
// something. The new process then has the worker's environment. Such a process was started by a
// living parent outside the job. So a process is an orphan only if all of this is true:
//   - Its cookie is in `gone`, and neither `self` nor an ancestor of `self` carries that cookie.
//   - Go up from it as long as the parent carries the same cookie. The parent of the last process
//     has taken in orphans of this job: at least this one or another one.
//
// The kernel gives an orphan to init, or to the nearest ancestor that asked for orphans (prctl(2),
// PR_SET_CHILD_SUBREAPER). Such ancestors are `systemd --user` and the first process of many
// containers. It does not tell who asked. We say that a parent took a process in if one of these is
// true:
//   - The parent is a known reaper.
//   - The process leads no session, and its session is not its parent's. So it has the session of
//     somebody who is gone.
//   - The parent is `self` or an ancestor of it, and the process is not in the parent's session.
std::vector<pid_t> orphans_of(const std::map<pid_t, ProcessEntry>& processes,
                              const std::set<std::string>& gone, pid_t self);

// Kills the processes of all jobs whose launcher is gone. Removes their cgroups, scratch folders
// and shared memory, also those of a pid namespace that has ended. Returns how many processes it
// killed one by one; those in cgroups are not counted. It does not wait for their ends: a cgroup
// may stay for the next start.
//
// Containers may share /dev/shm, and not see each other's processes. A job keeps its lock while its
// pid namespace is not seen here, for a day at most. A start that sees its processes ends them.
std::size_t end_orphans();

// Returns how many processes end_orphans() would kill one by one. It ends nothing.
std::size_t count_orphans();

}  // namespace ddprun::agent
