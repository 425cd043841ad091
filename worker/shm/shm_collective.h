// The collective of ranks that share one host's memory. Gradients live in shared memory. Each rank
// owns one chunk of every sum: it adds that chunk from all ranks and stores the result to all of
// them. So each buffer is read once and written once, which is the least possible. The order of the
// sum is that of ring_order.h. Linux, x86-64. There is no thread: the work is done inside the
// calls, on the caller's thread.
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
};

// All ranks must call it: they meet over `exchange`. Errors: those of the exchange, a segment that
// this rank cannot map, or a rank that does not come in time. If rank 0 cannot make the shared
// memory, it logs why, and LoggedError is thrown on all ranks.
Result<std::unique_ptr<Collective>> join_shm(const ShmJob& job, Exchange& exchange);

}  // namespace ddprun::worker
