#include "rendezvous/seating.h"

#include <boost/asio/ip/address.hpp>
#include <map>
#include <optional>
#include <utility>

#include "proto/assert.h"

namespace ddprun::rendezvous {
namespace {

// An address of the store that every node of the round can reach. A node on the machine of the
// rendezvous is seen at loopback, and no other machine can connect to that. But the others reached
// the rendezvous, so the address at which they reached it works. If all nodes are on that machine,
// loopback is right.
std::string master_address(const std::vector<Entrant>& entrants) {
  const Entrant& master = entrants.front();
  if (!master.spec.store_address.empty()) return master.spec.store_address;
  if (!is_loopback(master.observed.address)) return master.observed.address;
  for (const Entrant& other : entrants) {
    const bool remote = !is_loopback(other.observed.address);
    if (remote && !other.observed.reached_at.empty()) return other.observed.reached_at;
  }
  return master.observed.address;
}

}  // namespace

bool is_loopback(const std::string& address) {
  boost::system::error_code error;
  const auto parsed = boost::asio::ip::make_address(address, error);
  if (error) return false;
  if (parsed.is_v4()) return parsed.to_v4().is_loopback();
  // A socket for IPv6 and IPv4 shows an IPv4 peer as ::ffff:127.0.0.1 (RFC 4291 section 2.5.5.2).
  const auto v6 = parsed.to_v6();
  if (!v6.is_v4_mapped()) return v6.is_loopback();
  return boost::asio::ip::make_address_v4(boost::asio::ip::v4_mapped, v6).is_loopback();
}

std::vector<Entrant> order_of_seats(std::vector<Entrant> arrivals) {
  std::vector<std::optional<Entrant>> seats(arrivals.size());
  // Seats those whose `seat` is free, and leaves the others in `arrivals`. A round with fewer nodes
  // does not have the highest seats.
  const auto take = [&](auto seat_of) {
    std::vector<Entrant> others;
    for (Entrant& entrant : arrivals) {
      const int seat = seat_of(entrant);
      const bool is_free =
          seat >= 0 && seat < std::ssize(seats) && !seats[static_cast<std::size_t>(seat)];
      if (is_free) {
        seats[static_cast<std::size_t>(seat)] = std::move(entrant);
      } else {
        others.push_back(std::move(entrant));
      }
    }
    arrivals = std::move(others);
  };
  const auto wanted = [](const Entrant& entrant) { return entrant.spec.node_rank; };
  take([&](const Entrant& entrant) { return entrant.spec.rank_is_wish ? -1 : wanted(entrant); });
  take([](const Entrant& entrant) { return entrant.previous_seat; });
  take(wanted);
  std::vector<Entrant> ordered;
  ordered.reserve(seats.size());
  // As many seats are free as nodes are left.
  auto next = arrivals.begin();
  for (auto& seat : seats) ordered.push_back(seat ? std::move(*seat) : std::move(*next++));
  return ordered;
}

SeatedRound make_round(std::int64_t number, int restart_count,
                       const std::vector<Entrant>& entrants) {
  DDPRUN_ASSERT(!entrants.empty());
  SeatedRound seated;
  Round& round = seated.round;
  round.number = number;
  round.restart_count = restart_count;
  round.node_count = static_cast<int>(entrants.size());
  std::map<std::string, int> role_sizes;
  for (const Entrant& entrant : entrants) {
    int& role_size = role_sizes[entrant.spec.role];
    seated.seats.push_back({.node_rank = static_cast<int>(seated.seats.size()),
                            .first_rank = round.world_size,
                            .role_first_rank = role_size});
    role_size += entrant.spec.local_world_size;
    round.world_size += entrant.spec.local_world_size;
  }
  for (std::size_t i = 0; i < entrants.size(); ++i)
    seated.seats[i].role_world_size = role_sizes[entrants[i].spec.role];
  round.master_addr = master_address(entrants);
  round.master_port = entrants.front().spec.store_port;
  return seated;
}

}  // namespace ddprun::rendezvous
