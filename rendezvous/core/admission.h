// Decides which nodes can be in a job at all. Pure; used by Membership only.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/net/address.h"
#include "rendezvous/core/members.h"
#include "rendezvous/core/round_policy.h"
#include "rendezvous/core/seating.h"

namespace ddprun::rendezvous {

// The most workers of one node. No machine has so many accelerators. And a world size, at most this
// times kMaxNodes, always fits into an int.
inline constexpr int kMaxLocalWorldSize = 4096;

// Returns whether the node was given another --nnodes than the host.
bool differs(const NodeSpec& spec, const RoundPolicy& policy);

// The reason why a node cannot be in a job. One text is for the host, one for a remote node that
// did not prove that it knows the token. That one learns nothing of other nodes and of the job's
// size. On the host's own machine each user sees both in the list of processes.
struct JoinRefusal {
  // Both hear the same.
  explicit JoinRefusal(Error why) : whole(why), for_unproven(std::move(why)) {}
  JoinRefusal(Error all, Error less, bool users)
      : whole(std::move(all)), for_unproven(std::move(less)), is_the_users(users) {}

  Error whole;
  Error for_unproven;
  bool is_the_users = false;  // a mistake in what the user typed: the host's log must tell of it

  const Error& error_for(const PeerInfo& node) const {
    return node.is_proven || is_loopback(node.address) ? whole : for_unproven;
  }
};

// Returns why `spec` cannot be in this job. No value if it can. The codec has checked lengths only.
// The node of `session` is one of `members` already.
std::optional<JoinRefusal> validate(SessionId session, const NodeSpec& spec,
                                    const RoundPolicy& policy, const Members& members);

// The job has one budget. If the nodes of a round were started with different ones, the smallest
// holds. So no node is restarted more often than its user allowed. Window and backoff are those of
// node rank 0, which comes first. `notes` gets a line for the log if they differ.
RestartRules common_rules(const std::vector<const Entrant*>& entrants,
                          std::vector<std::string>& notes);

}  // namespace ddprun::rendezvous
