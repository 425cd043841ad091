// A node's reports on its ranks' replicas. Ranks that have the same are told together, so they are
// short. Pure. Any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "agent/replicas/replica_file.h"
#include "rendezvous/core/rendezvous.h"

namespace ddprun::agent {

// One check of one rank.
struct RankCheck {
  int rank = 0;  // global
  std::uint64_t set = 0;
  int members = 0;
  ReplicaCheck check{};
};

// By step, in reports that a host takes.
std::vector<rendezvous::ReplicaReport> replica_reports(std::int64_t round,
                                                       const std::vector<RankCheck>& checks);

// A rank, and what it has of the check that is asked for; empty: it is not there any more.
struct RankHashes {
  int rank = 0;  // global
  ReplicaHashes hashes{};
};
std::vector<rendezvous::ReplicaReport> replica_answers(const rendezvous::ReplicaQuestion& question,
                                                       const std::vector<RankHashes>& ranks);

}  // namespace ddprun::agent
