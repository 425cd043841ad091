// Who sits where: turns the nodes that are in a round into the Round they all receive. Pure: equal
// inputs, equal answer. Does not decide who is in (membership.h does).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rendezvous/rendezvous.h"

namespace ddprun::rendezvous {

// How a node was seen by the rendezvous.
struct Observed {
  // Numeric address the node's connection came from; loopback for a node on the rendezvous' own
  // machine.
  std::string address;
  // Numeric address under which the node reached the rendezvous; empty for a node in its own
  // process. It is an address of the rendezvous' machine that is known to work from this node.
  std::string reached_at = {};

  bool operator==(const Observed&) const = default;
};

// Names a node's connection; made up by the shell, never used twice.
using SessionId = std::uint64_t;

// A node that will be in the round.
struct Entrant {
  SessionId session = 0;
  NodeSpec spec;
  Observed observed;
};

// The nodes in seat order: a node that insists on a rank below the number of nodes sits there
// (ranks are distinct), the others fill the rest in the order given, which is their order of
// arrival.
std::vector<Entrant> order_of_seats(std::vector<Entrant> arrivals);

// The round in which seats[i] is given to entrants[i]. `entrants` is not empty and already in seat
// order.
Round make_round(std::int64_t number, int restart_count, const std::vector<Entrant>& entrants);

// Whether a numeric address is loopback (127.0.0.0/8, ::1, also IPv4-mapped). Text that is no
// address is not.
bool is_loopback(const std::string& address);

}  // namespace ddprun::rendezvous
