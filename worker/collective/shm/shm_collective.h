// The collective of ranks that share one host's memory. Gradients live in shared memory. Each rank
// owns one chunk of every sum. It adds that chunk from all ranks and stores the result to all of
// them. So each buffer is read once and written once, which is the least possible. The order of the
// sum is that of ring_order.h. Linux, x86-64 and arm64. There is no thread: the work is done inside
// the calls, on the caller's thread.
#pragma once

#include <ddprun/collective.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "worker/collective/core/exchange.h"
#include "worker/collective/core/operation_ring.h"
#include "worker/collective/core/parts.h"

namespace ddprun::worker {

struct ShmJob {
  int rank = 0;
  int ranks = 1;                        // all of them on this host
  std::chrono::milliseconds timeout{};  // of every wait for a peer
};

// A rank's chunk of a sum, or all of an all-gather or all-to-all. It is in its own buffer first,
// then in those of the next ranks, in a circle.
struct OwnedChunk {
  std::vector<std::byte*> buffers;
  std::size_t begin = 0;  // elements of the flat before it
  std::size_t count = 0;  // elements
  Dtype dtype = Dtype::kFloat32;

  // The buffer of a rank of the host. `own`: the rank here.
  std::byte* buffer_of(int rank, int own) const {
    const auto ranks = static_cast<int>(buffers.size());
    return buffers[static_cast<std::size_t>((rank + ranks - own) % ranks)];
  }
};

// Sums that the caller adds, for collectives that reduce over other ranks as well before a host
// gets the result. These follow for each of them, in the order of the launches. First
// launch_chunks(), then await_launch(), or may_add() says yes, then owned_chunk(). The caller
// stores the result to the buffers of those that shall have it. Then come note_added() and wait().
class HostCollective : public Collective {
 public:
  // Works as launch() does. The owners of parts may be any ranks.
  virtual Ticket launch_chunks(Flat flat, const LaunchRequest& request) = 0;
  // Returns whether all ranks have launched it.
  virtual bool may_add(Ticket ticket) const = 0;
  // Returns when may_add().
  virtual void await_launch(Ticket ticket) = 0;
  // Throws CollectiveError where another rank has launched something else.
  virtual OwnedChunk owned_chunk(Ticket ticket) = 0;
  virtual void note_added(Ticket ticket) = 0;

  // all_gather_bytes() of a few bytes as the beginning of another operation. Others know it by that
  // one's name.
  virtual std::vector<std::vector<std::byte>> gather_for(OperationKind kind,
                                                         std::span<const std::byte> mine) = 0;
};

// All ranks must call it: they meet over `exchange`. Errors: those of the exchange, or a segment
// that this rank cannot map. Or a rank does not come in time. If rank 0 cannot make the shared
// memory, it logs why, and LoggedError is thrown on all ranks.
Result<std::unique_ptr<HostCollective>> join_shm(const ShmJob& job, Exchange& exchange);

}  // namespace ddprun::worker
