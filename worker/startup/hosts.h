// The collective of CPU ranks on several hosts: which ranks are where, and what connects them.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "proto/result.h"
#include "proto/worker_env.h"
#include "worker/tcp/tcp_collective.h"

namespace ddprun::worker {

// Where a rank is, as its launcher says.
struct RankPlace {
  int node_rank = 0;
  int local_rank = 0;
  int local_ranks = 1;
};

// Whether each host has as many ranks as every other one, and they are numbered host by host. `places` are
// by rank. Pure.
bool is_uniform(const std::vector<RankPlace>& places);

struct HostsOptions {
  std::chrono::milliseconds timeout{};
  Wire wire = Wire::kExact;
  std::string congestion_control = kCongestionControl;
};

// All ranks of the job must call it. "tcp" where each host has one rank; "hierarchical" where each has
// the same number; else "tcp" between all ranks, also between those of one host. Errors: no answer of the
// store, a rank that does not come, hosts that cannot reach each other.
Result<std::unique_ptr<Collective>> join_hosts(const WorkerEnv& world, const HostsOptions& options);

}  // namespace ddprun::worker
