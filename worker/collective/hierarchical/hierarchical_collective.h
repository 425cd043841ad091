// The collective of several hosts with several ranks each. A sum goes in three steps. The ranks of
// a host add in shared memory, each one chunk. The ranks with the same local rank add their chunk
// over TCP. Each gives the result to its host. So each host sends 2 (H-1)/H of the bytes once, not
// once for each rank.
//
// The order of a sum is that of ring_order.h: among the ranks of a host, then among the hosts. It
// is the same in each run with as many hosts and ranks. It differs from that of one ring over all
// ranks: with floats the bits do, too. 16-bit floats are rounded once more, between the two.
#pragma once

#include <chrono>
#include <memory>

#include "worker/collective/shm/shm_collective.h"
#include "worker/collective/tcp/tcp_collective.h"

namespace ddprun::worker {

struct HierarchicalParts {
  std::unique_ptr<HostCollective> host;  // the ranks of this host
  std::unique_ptr<TcpCollective> peers;  // one rank of each host: those with this local rank
  // All ranks. rank = host's place × ranks of a host + local rank, for the same number of ranks on
  // each.
  std::unique_ptr<TcpCollective> all;
  std::chrono::milliseconds timeout{};  // theirs, for the flight record
};

std::unique_ptr<Collective> make_hierarchical_collective(HierarchicalParts parts);

}  // namespace ddprun::worker
