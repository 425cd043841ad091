// The changes that an operator may make to a job: whether each can be made, and what follows. Pure:
// a Membership and `now` go in, an Outcome for Host comes out, or why not.
#pragma once

#include <chrono>
#include <string>

#include "rendezvous/core/membership.h"

namespace ddprun::rendezvous {

// The node that has this node rank in the round, this hostname or this id. Errors: kNotFound,
// nobody has; kInvalidArgument, several have that hostname.
Result<SessionId> find_node(const Membership& membership, const std::string& name);

// The node leaves, the others go on, and no restart is spent. `deadline`: as in Drain. Refused
// (kRejected) where too few would remain, or its work is done. A node that leaves already is told
// the new deadline: it takes one that is sooner.
Result<Outcome> drain(Membership& membership, SessionId session, std::chrono::milliseconds deadline,
                      Time now);

// Rounds have so many nodes from now on (Membership::resized). Errors: kInvalidArgument, no job can
// have so many; kRejected, the job is over, or its nodes were given their ranks.
Result<Outcome> resize(Membership& membership, int min_nodes, int max_nodes, Time now);

// Takes the strikes of a node away, which find_node() finds. If it is not here, `name` is its host.
// Membership::tick() must follow. Returns one line for people. Errors: kNotFound, it has none; and
// those of find_node().
Result<std::string> forgive(Membership& membership, const std::string& name);

// The job ends for all nodes. `by`: who wants it; may be empty. Refused where it is over already.
Result<Outcome> stop(Membership& membership, const std::string& by, Time now);

}  // namespace ddprun::rendezvous
