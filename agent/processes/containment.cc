#include "agent/processes/containment.h"

#include "agent/processes/descendants.h"
#include "agent/processes/shared_memory.h"
#include "proto/log.h"

namespace ddprun::agent {

int Containment::begin_attempt() {
  cgroup_ = JobCgroup::make(job_cookie_);
  return cgroup_.folder();
}

void Containment::end_attempt(std::chrono::milliseconds limit) {
  cgroup_.kill();  // first: what forks faster than we look cannot outrun it
  for (const Stuck& left : end_descendants(limit)) log::warning(describe(left));
  cgroup_.remove();
  remove_shared_memory(job_cookie_);
}

}  // namespace ddprun::agent
