// Ends everything that an attempt brought into being. These are the processes that its workers
// started, also in sessions of their own, and the workers' shared memory. The agent calls it
// between attempts and at the end of the job. It does I/O and blocks the loop, for a bounded time.
// Loop's thread; owned by WorkerGroup.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "agent/processes/job_cgroup.h"

namespace ddprun::agent {

class Containment {
 public:
  explicit Containment(std::string job_cookie) : job_cookie_(std::move(job_cookie)) {}

  // Makes a cgroup for a new attempt. Returns a descriptor of its folder: start the workers in it.
  // The descriptor stays ours. -1: there is no cgroup.
  int begin_attempt();
  // The same for those that will be workers of the next attempt. Every process in it lives on when
  // this attempt ends.
  int standby_cgroup();
  // Sends SIGKILL to every process below us and to the whole cgroup. Waits up to `limit` for their
  // ends, then removes the cgroup and the shared memory. A process that is still there is in
  // uninterruptible sleep; the log names it. Kills workers too, and reaps them: call only when none
  // may survive and nobody needs their exit codes any more. `standbys`, children of ours, live on.
  // Before that, what workers left behind gets SIGTERM and `grace` to end; a warning names it. 0:
  // not so.
  void end_attempt(std::chrono::milliseconds limit, std::chrono::milliseconds grace,
                   const std::set<pid_t>& standbys);
  // The same at the end of the job, for the standbys too. They were told to end, and no warning
  // names them: workers have not left them.
  void end(std::chrono::milliseconds limit, std::chrono::milliseconds grace,
           const std::set<pid_t>& standbys);

 private:
  static void ask(std::chrono::milliseconds grace, const std::set<pid_t>& standbys);
  void sweep(std::chrono::milliseconds limit, const std::set<pid_t>& spared);

  std::string job_cookie_;
  JobCgroup cgroup_;
  std::optional<JobCgroup> next_;
  int cgroups_ = 0;  // made so far
};

// The name of a program's shared memory is this prefix and the job's cookie.
inline constexpr const char* kSharedMemoryPrefix = "ddprun-";

// Removes the shared memory that this job's workers left. It is every file in /dev/shm whose name
// begins with `ddprun-<job_cookie>`. A program may name its memory so (DDPRUN_JOB has the cookie);
// the engine's own memory has no name. `job_cookie` must not be empty. Call only when no worker of
// this job is alive. A rank that has not mapped the file yet could not find it any more.
void remove_shared_memory(const std::string& job_cookie);

}  // namespace ddprun::agent
