#include "rendezvous/core/round_policy.h"

#include <algorithm>

namespace ddprun::rendezvous {

RoundSettings with_defaults(RoundSettings settings) {
  const RoundSettings usual;
  for (const auto time : {&RoundSettings::join_timeout, &RoundSettings::last_call})
    if ((settings.*time).count() <= 0) settings.*time = usual.*time;
  return settings;
}

Decision decide(const Roster& roster, const RoundPolicy& policy, Time now) {
  // This comes before all other reasons: workers of two rounds must not run at once. A node that
  // still stops its workers may keep its seat. Each of them ends by its own grace or lease, so
  // there is no time to look at.
  if (roster.leaving > 0) return {RoundDecision::kWait, Reason::kLeaving, Time::max()};
  if (roster.returning > 0) return {RoundDecision::kWait, Reason::kReturning, Time::max()};
  if (roster.awaited > 0 && now < roster.workers_until)
    return {RoundDecision::kWait, Reason::kReturning, roster.workers_until};
  if (roster.waiting == 0) return {RoundDecision::kWait, Reason::kNobody, Time::max()};
  // A full round has to wait for its restart, too.
  if (now < roster.not_before) return {RoundDecision::kWait, Reason::kBackoff, roster.not_before};
  const Time given_up_at = roster.waiting_since + policy.settings.join_timeout;
  // More wait only where an operator lowered max_nodes.
  if (roster.waiting >= policy.max_nodes) return {RoundDecision::kClose, Reason::kFull, now};
  const bool enough = roster.waiting >= policy.min_nodes;
  if (now >= given_up_at)
    return {enough ? RoundDecision::kClose : RoundDecision::kGiveUp, Reason::kJoinTimeout, now};
  if (!enough) return {RoundDecision::kWait, Reason::kTooFew, given_up_at};
  if (roster.awaited > 0 && now < roster.awaited_until)
    return {RoundDecision::kWait, Reason::kReturning, std::min(roster.awaited_until, given_up_at)};
  // All nodes that live are back after a restart. A last call would only cost time. A resize takes
  // in the nodes that come later.
  if (!roster.is_first) return {RoundDecision::kClose, Reason::kAllBack, now};
  const Time last_call_ends = roster.min_reached_at + policy.settings.last_call;
  if (now >= last_call_ends) return {RoundDecision::kClose, Reason::kLastCallOver, now};
  return {RoundDecision::kWait, Reason::kLastCall, std::min(last_call_ends, given_up_at)};
}

Await awaited(Reason reason) {
  if (reason == Reason::kLastCall) return Await::kLastCall;
  if (reason == Reason::kBackoff) return Await::kRestartPause;
  if (reason == Reason::kReturning || reason == Reason::kLeaving) return Await::kOldWorkers;
  return Await::kNodes;
}

int usable_nodes(int nodes, const RoundPolicy& policy) {
  const int most = std::min(nodes, policy.max_nodes);
  return most - most % policy.settings.node_unit;
}

Time resize_at(int running, int spares, Time since, std::optional<Time> last,
               const RoundPolicy& policy) {
  if (spares == 0 || usable_nodes(running + spares, policy) <= running) return Time::max();
  const Time gathered = since + policy.settings.resize_wait;
  return last ? std::max(gathered, *last + policy.settings.resize_interval) : gathered;
}

}  // namespace ddprun::rendezvous
