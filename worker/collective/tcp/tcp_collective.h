// The collective of ranks that TCP connects, one connection a pair. A sum moves 2 (N-1)/N of its
// bytes out of each rank and as many in. That is the least possible. It takes two hops, in the
// order of ring_order.h. There is no thread. Bytes move inside the calls, on the caller's thread.
// progress() moves them while the program computes. Linux, x86-64 and arm64.
#pragma once

#include <ddprun/collective.h>
#include <ddprun/process.h>

#include <chrono>
#include <memory>
#include <string>

#include "base/result.h"
#include "worker/collective/core/exchange.h"
#include "worker/collective/core/operation_ring.h"
#include "worker/collective/tcp/tcp_feed.h"
#include "worker/collective/tcp/tcp_routes.h"

namespace ddprun::worker {

struct TcpJob {
  int rank = 0;
  int ranks = 1;
  std::string address;  // of this host, numeric: the other ranks connect to it
  std::string host;     // its name, for messages
  std::chrono::milliseconds
      timeout{};             // how long nothing may move between it and those that it awaits
  Wire wire = Wire::kExact;  // the same on all ranks
  std::string congestion_control = kCongestionControl;
};

struct LaunchRequest;

class TcpCollective : public Collective {
 public:
  // Memory of another collective, which may be summed here, too, while it lives.
  virtual void adopt(const std::shared_ptr<std::byte>& memory, std::size_t bytes) = 0;
  // An all-reduce or a reduce-scatter of elements that `feed` makes, in `flat`. All ranks give one,
  // or none does.
  virtual Ticket launch(Flat flat, LaunchRequest request, std::unique_ptr<TcpFeed> feed) = 0;
  using Collective::launch;
  // An all-gather or an all-to-all whose bytes may lie outside of `flat`. `flat` is what the ranks
  // compare, and its memory is held.
  virtual Ticket launch(Flat flat, OperationKind kind, TcpRoutes routes) = 0;
  // Returns whether wait() would return at once.
  virtual bool done(Ticket ticket) const = 0;
  // Returns when all ranks have called it with the same arguments. Ranks that do something else are
  // told at once.
  virtual void meet(OperationKind kind, int root) = 0;
};

// All ranks must call it: they meet over `exchange`. Errors: those of the exchange, or an address
// that is not this host's. Or a rank that cannot be reached or does not come.
Result<std::unique_ptr<TcpCollective>> join_tcp(const TcpJob& job, Exchange& exchange);

}  // namespace ddprun::worker
