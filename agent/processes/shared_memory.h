// Removes shared-memory segments that this job's workers left in /dev/shm. The engine unlinks its
// segment as soon as every rank of the host has mapped it; only a worker killed before that leaves
// one (worker/collective/shm_segment.h names them).
#pragma once

#include <string>

namespace ddprun::agent {

// Unlinks every /dev/shm file whose name starts with `ddprun-<job_cookie>`. REQUIRES a cookie that
// is not empty and that no worker of this job is alive.
void remove_shared_memory(const std::string& job_cookie);

}  // namespace ddprun::agent
