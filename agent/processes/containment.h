// Everything an attempt brought into being beside the workers themselves: whatever they started,
// however it hid, and their shared memory. Ends all of it between attempts and at the end of the
// job. Shell; blocks the loop, for a bounded time. Owned by Agent.
#pragma once

#include <chrono>
#include <string>

#include "agent/processes/job_cgroup.h"

namespace ddprun::agent {

class Containment {
 public:
  explicit Containment(std::string job_cookie) : job_cookie_(std::move(job_cookie)) {}

  // A new attempt. The folder of the cgroup to start its workers in; -1: there is none.
  int begin_attempt();
  // SIGKILL to whatever lives, all at once where there is a cgroup; waits up to `limit`. What is
  // left after it is in uninterruptible sleep and is named in the log. REQUIRES that no worker must
  // live on.
  void end_attempt(std::chrono::milliseconds limit);

 private:
  std::string job_cookie_;
  JobCgroup cgroup_;
};

// Removes shared-memory segments that this job's workers left in /dev/shm. The engine unlinks its
// segment as soon as every rank of the host has mapped it; only a worker killed before that leaves
// one (worker/collective/shm_segment.h names them). Unlinks every file there whose name starts with
// `ddprun-<job_cookie>`. Call only with a cookie that is not empty, and when no worker of this job
// is alive.
void remove_shared_memory(const std::string& job_cookie);

}  // namespace ddprun::agent
