// The way of ranks to each other. Each listens at its own address, and all learn all addresses. The
// higher rank of a pair connects to the lower one. A connection begins with the listener's secret,
// which only who can read the exchange knows; others are closed. When all are there, nobody listens
// any more.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "worker/collective/core/exchange.h"
#include "worker/collective/tcp/tcp_collective.h"
#include "worker/collective/tcp/tcp_link.h"

namespace ddprun::worker {

struct TcpConnections {
  std::vector<TcpLink> links;      // by rank; the own one is empty
  std::vector<std::string> hosts;  // by rank
};

// A rank waits so long for the others to connect. It is short: all of them are there, and only the
// network can be in the way.
inline constexpr std::chrono::seconds kConnectLimit{60};

// All ranks must call it. Errors: those of the exchange; no such own address; a rank that cannot be
// reached, or does not come.
Result<TcpConnections> tcp_connect(const TcpJob& job, Exchange& exchange);

}  // namespace ddprun::worker
