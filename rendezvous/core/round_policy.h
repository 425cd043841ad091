// When a round may start, and when a running one makes room for newcomers. Pure: Membership says
// who is here and what time it is. Any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "rendezvous/core/rendezvous.h"
#include "rendezvous/core/restart_budget.h"

namespace ddprun::rendezvous {

struct RoundPolicy {
  int min_nodes = 1;
  int max_nodes = 1;
  RoundSettings settings;
  // How long the nodes of a round that another leader gathered are awaited. Until the first of
  // these ends, workers of nodes that are not back may run. It must not be shorter than a lease
  // with the other leader. Until the second, no round that has room for them starts without them.
  std::chrono::nanoseconds recovery_limit = std::chrono::seconds(5);
  std::chrono::nanoseconds return_limit = std::chrono::seconds(30);
  // A host that has published no round goes on with that of its first node to come back.
  bool takes_rounds_over = false;
  std::uint64_t jitter_seed = 0;  // for the random part of the waits between restarts
};

// Returns a node's settings, with the defaults of join_timeout and last_call if they are 0. The
// times of a resize may be 0.
RoundSettings with_defaults(RoundSettings settings);

// The input of decide().
struct Roster {
  int waiting = 0;    // nodes that asked for the next round and hold a seat in it
  int returning = 0;  // nodes of the broken round, or of one before, that still stop their workers
  int leaving = 0;    // as `returning`, but they will not be back
  // Nodes of the round before that are not back yet, if another leader gathered that round. They
  // are known by number only. Their workers may run until `workers_until`; waited for until
  // `awaited_until`.
  int awaited = 0;
  Time workers_until = Time::min();
  Time awaited_until = Time::min();
  bool is_first = true;           // no round has started yet
  Time waiting_since;             // since when nodes wait; valid only if one waits and nobody stops
  Time min_reached_at;            // when `waiting` last reached min_nodes; valid only from there on
  Time not_before = Time::min();  // no round may start earlier: the wait before a restart
};

// kWait: for an event or for a time. kClose: the round starts. kGiveUp: too few came, the job ends.
enum class RoundDecision { kWait, kClose, kGiveUp };
// Why decide() chose so.
enum class Reason {
  kNobody,
  kTooFew,
  kReturning,
  kLeaving,
  kLastCall,
  kAllBack,
  kFull,
  kLastCallOver,
  kJoinTimeout,
  kBackoff
};
struct Decision {
  RoundDecision choice;
  Reason reason;
  Time look_again_at;  // for kWait: decide again then; Time::max(): only an event can change it
};

// Says whether the round may start at `now`.
Decision decide(const Roster& roster, const RoundPolicy& policy, Time now);

// Returns the event that a round awaits if it does not start for this reason.
Await awaited(Reason reason);

// The most of `nodes` that one round can have: at most max_nodes, and a multiple of node_unit.
int usable_nodes(int nodes, const RoundPolicy& policy);

// While a round runs: whether it is broken to take newcomers in, and when. `running` nodes are in
// the round and `spares` wait. `since` is when the first of these came, `last` when a round was
// last broken for newcomers. Time::max(): no newcomer can be taken in.
Time resize_at(int running, int spares, Time since, std::optional<Time> last,
               const RoundPolicy& policy);

}  // namespace ddprun::rendezvous
