// Finds out which ranks share a host. Pure.
#pragma once

#include <vector>

#include "worker/startup/init_method/own_address.h"

namespace ddprun::worker {

// The place of a rank, as its launcher says, or as the ranks found out.
struct RankPlace {
  int node_rank = 0;
  int local_rank = 0;
  int local_ranks = 1;
};

// Returns whether each host has as many ranks as every other one, and they are numbered host by
// host. `places` are by rank.
bool is_uniform(const std::vector<RankPlace>& places);

// Returns the places of ranks whose hosts are known. Hosts are numbered by their first rank, and
// the ranks of a host in their order. `hosts` are by rank.
std::vector<RankPlace> place_ranks(const std::vector<HostId>& hosts);

}  // namespace ddprun::worker
