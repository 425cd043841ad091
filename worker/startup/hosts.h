// The collective of CPU ranks on several hosts: which ranks are where, and what connects them.
#pragma once

#include <ddprun/process.h>

#include <chrono>
#include <memory>
#include <string>

#include "base/result.h"
#include "proto/worker_env.h"
#include "worker/collective/tcp/tcp_collective.h"

namespace ddprun::worker {

struct HostsOptions {
  std::chrono::milliseconds timeout{};
  Wire wire = Wire::kExact;
  std::string congestion_control = kCongestionControl;
};

// All ranks of the job must call it. "tcp" if each host has one rank; "hierarchical" if each has
// the same number. Else "tcp" between all ranks, also between those of one host. Errors: no answer
// of the store, a rank that does not come, hosts that cannot reach each other.
Result<std::unique_ptr<Collective>> join_hosts(const WorkerEnv& world, const HostsOptions& options);

}  // namespace ddprun::worker
