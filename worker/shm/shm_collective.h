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

// The two halves of a sum, for collectives that do something between them. Both work as launch() does.
class HostCollective : public Collective {
 public:
  // Afterwards each rank has the result of its own chunk, own_chunk(), and nobody of the others.
  virtual Ticket launch_to_owners(Flat flat, Reduction reduction) = 0;
  // Gives each rank's chunk to all. Call it when launch_to_owners() is complete on this rank.
  virtual Ticket launch_from_owners(Flat flat) = 0;
  // The part of `flat` that this rank owns.
  virtual Flat own_chunk(Flat flat) const = 0;
  // Whether this rank's own part of that sum is done; then its chunk may be used.
  virtual bool own_part_done(Ticket ticket) const = 0;
};

// All ranks must call it: they meet over `exchange`. Errors: those of the exchange, a segment that
// this rank cannot map, or a rank that does not come in time. If rank 0 cannot make the shared
// memory, it logs why, and LoggedError is thrown on all ranks.
Result<std::unique_ptr<HostCollective>> join_shm(const ShmJob& job, Exchange& exchange);

}  // namespace ddprun::worker
