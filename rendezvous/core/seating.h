// Turns the nodes that are in a round into the Round and their seats. Pure, so any thread may use
// it: equal inputs give equal answers. It does not decide who is in the round; membership.h does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rendezvous/core/rendezvous.h"

namespace ddprun::rendezvous {

// How the rendezvous sees a node.
struct PeerInfo {
  // Numeric address from which the node's connection came. Loopback for a node on the machine of
  // the rendezvous.
  std::string address;
  // Numeric address at which the node reached the rendezvous. So this address of the rendezvous'
  // machine works from that node. Empty for a node in the process of the rendezvous.
  std::string reached_at = {};
  // It knows the job's token. Otherwise it is told nothing of other nodes.
  bool is_proven = true;

  bool operator==(const PeerInfo&) const = default;
};

// Names a node's session. Host makes it up and never uses it twice.
using SessionId = std::uint64_t;

// A node that will be in the round.
struct Entrant {
  SessionId session = 0;
  NodeSpec spec;
  PeerInfo observed;
  int previous_seat = -1;  // in the last round that it was in; -1: it is new
};

// The nodes' indices in seat order. A node gets the node rank that it must have if that is below
// the number of nodes. No two may claim the same. A node of the last round keeps its seat if that
// is free; no two may have had the same. Then preferences are met if they can be. The others fill
// the free seats in the order given, which is their order of arrival.
std::vector<std::size_t> order_of_seats(const std::vector<const Entrant*>& arrivals);

// A round and the seats of its nodes; seats[i] has node rank i.
struct SeatedRound {
  Round round;
  std::vector<Seat> seats;
};

// Makes the round in which entrants[i] has seats[i]. `entrants` must be in seat order and must not
// be empty.
SeatedRound make_round(std::int64_t number, int restart_count,
                       const std::vector<const Entrant*>& entrants);

}  // namespace ddprun::rendezvous
