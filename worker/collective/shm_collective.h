// The collective of ranks that share one host's memory: gradients live in shared memory, the owner
// of each chunk adds it from all ranks and stores the sum to all of them (2·N·S bytes of memory
// traffic, the least possible). Order of the sum: ring_order.h. Linux, x86-64. Progress is made
// inside the calls: there is no thread.
#pragma once

#include <chrono>
#include <memory>

#include "proto/result.h"
#include "worker/collective/collective.h"
#include "worker/collective/exchange.h"

namespace ddprun::worker {

struct ShmJob {
  int rank = 0;
  int ranks = 1;                        // all of them on this host
  std::chrono::milliseconds timeout{};  // of every wait for a peer
  std::string cookie{};  // of the job; the agent removes segments whose names carry it
};

// Collective over the exchange. Errors: the exchange's. Throws LoggedError, on all ranks, where rank
// 0 cannot have the shared memory.
Result<std::unique_ptr<Collective>> join_shm(const ShmJob& job, Exchange& exchange);

}  // namespace ddprun::worker
