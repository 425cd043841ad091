#include "worker/startup/init_method/rank_places.h"

#include <cstddef>
#include <map>
#include <string>
#include <utility>

namespace ddprun::worker {

bool is_uniform(const std::vector<RankPlace>& places) {
  const int local_ranks = places.front().local_ranks;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const RankPlace& place = places[rank];
    if (place.local_ranks != local_ranks || place.local_rank >= local_ranks ||
        place.node_rank * local_ranks + place.local_rank != static_cast<int>(rank))
      return false;
  }
  return local_ranks > 0 && places.size() % static_cast<std::size_t>(local_ranks) == 0;
}

std::vector<RankPlace> place_ranks(const std::vector<HostId>& hosts) {
  std::vector<RankPlace> places;
  std::map<std::pair<std::string, std::string>, int> node_of;
  std::vector<int> ranks_of;  // by node
  for (const HostId& host : hosts) {
    const auto next = static_cast<int>(node_of.size());
    const auto [found, is_new] = node_of.try_emplace({host.name, host.id}, next);
    if (is_new) ranks_of.push_back(0);
    int& ranks = ranks_of[static_cast<std::size_t>(found->second)];
    places.push_back({.node_rank = found->second, .local_rank = ranks});
    ++ranks;
  }
  for (RankPlace& place : places)
    place.local_ranks = ranks_of[static_cast<std::size_t>(place.node_rank)];
  return places;
}

}  // namespace ddprun::worker
