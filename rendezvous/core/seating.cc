#include "rendezvous/core/seating.h"

#include <map>
#include <numeric>

#include "base/assert.h"
#include "base/net/address.h"

namespace ddprun::rendezvous {
namespace {

// An address of the store that every node of the round can reach. A node on the machine of the
// rendezvous is seen at loopback, and no other machine can connect to that. But the others reached
// the rendezvous, so the address at which they reached it works. If all nodes are on that machine,
// loopback is right.
std::string master_address(const std::vector<const Entrant*>& entrants) {
  const Entrant& master = *entrants.front();
  if (!master.spec.store_address.empty()) return master.spec.store_address;
  if (!is_loopback(master.observed.address)) return master.observed.address;
  for (const Entrant* const other : entrants) {
    const bool remote = !is_loopback(other->observed.address);
    if (remote && !other->observed.reached_at.empty()) return other->observed.reached_at;
  }
  return master.observed.address;
}

}  // namespace

std::vector<std::size_t> order_of_seats(const std::vector<const Entrant*>& arrivals) {
  constexpr std::size_t kFree = -1;
  std::vector<std::size_t> seats(arrivals.size(), kFree);
  std::vector<std::size_t> others(arrivals.size());
  std::iota(others.begin(), others.end(), std::size_t{0});
  // Seats those whose `seat` is free, and leaves the others in `others`. A round with fewer nodes
  // does not have the highest seats.
  const auto take = [&](auto seat_of) {
    std::erase_if(others, [&](std::size_t arrival) {
      const int seat = seat_of(*arrivals[arrival]);
      if (seat < 0 || seat >= std::ssize(seats)) return false;
      std::size_t& taken_by = seats[static_cast<std::size_t>(seat)];
      if (taken_by != kFree) return false;
      taken_by = arrival;
      return true;
    });
  };
  const auto wanted = [](const Entrant& entrant) { return entrant.spec.node_rank; };
  take([&](const Entrant& entrant) {
    return entrant.spec.rank_is_preferred ? -1 : wanted(entrant);
  });
  take([](const Entrant& entrant) { return entrant.previous_seat; });
  take(wanted);
  // As many seats are free as nodes are left.
  auto next = others.begin();
  for (std::size_t& seat : seats)
    if (seat == kFree) seat = *next++;
  return seats;
}

SeatedRound make_round(std::int64_t number, int restart_count,
                       const std::vector<const Entrant*>& entrants) {
  DDPRUN_ASSERT(!entrants.empty());
  SeatedRound seated;
  Round& round = seated.round;
  round.number = number;
  round.restart_count = restart_count;
  round.node_count = static_cast<int>(entrants.size());
  seated.seats.reserve(entrants.size());
  std::map<std::string, int> role_sizes;
  for (const Entrant* const entrant : entrants) {
    int& role_size = role_sizes[entrant->spec.role];
    seated.seats.push_back({.node_rank = static_cast<int>(seated.seats.size()),
                            .first_rank = round.world_size,
                            .role_first_rank = role_size});
    role_size += entrant->spec.local_world_size;
    round.world_size += entrant->spec.local_world_size;
  }
  for (std::size_t i = 0; i < entrants.size(); ++i)
    seated.seats[i].role_world_size = role_sizes[entrants[i]->spec.role];
  round.master_addr = master_address(entrants);
  const NodeSpec& master = entrants.front()->spec;
  round.master_port = master.worker_store_port != 0 ? master.worker_store_port : master.store_port;
  round.master_hostname = entrants.front()->spec.hostname;
  return seated;
}

}  // namespace ddprun::rendezvous
