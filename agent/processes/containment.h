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

}  // namespace ddprun::agent
