// Membership where nodes come back: over another connection, or to another leader.
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "base/duration.h"
#include "rendezvous/core/admission.h"
#include "rendezvous/core/membership.h"

namespace ddprun::rendezvous {
namespace {

// So many rounds no job has had since its leader began. A new leader may know of none.
constexpr std::int64_t kMostRoundsAhead = std::int64_t{1} << 40;

}  // namespace

bool Outcome::hears(SessionId session, const HostMessage& message) const {
  return std::holds_alternative<JobEnded>(message) ||
         std::holds_alternative<SessionLost>(message) ||
         std::ranges::find(withheld_from, session) == withheld_from.end();
}

Outcome Membership::resumed(SessionId session, const ResumeRequest& node, const PeerInfo& observed,
                            Time now) {
  recovery_.known(session);
  take_round_over(node);
  // A node that lies must not use up the numbers: the codec takes none above kMostRounds.
  const std::int64_t ahead =
      std::clamp<std::int64_t>(node.round - round_number_, 0, kMostRoundsAhead);
  known_number_ = std::max(known_number_, round_number_ + ahead);
  Member* const member = members_.find(session);
  if (member != nullptr && member->drain) return {.deliveries = {{session, *member->drain}}};
  if (member != nullptr && node.state == NodeState::kJoining)
    return rejoined(*member, node, observed, now);
  Outcome outcome;
  take_strikes(node.spec, now);
  begin_recovery(now, outcome);
  if (leader_lost_ && node.round == round_number_)
    break_round(*std::exchange(leader_lost_, std::nullopt), now, outcome);
  if (member == nullptr) {
    returned(session, node, observed, now, outcome);
  } else if (member->listens()) {
    came_back(*member, node, now, outcome);
  }
  settle(outcome, now);
  return outcome;
}

// The others of that round come back, too, or their leases end. A node that waits here already is a
// newcomer.
void Membership::take_round_over(const ResumeRequest& node) {
  const bool is_round = node.round > 0 && node.round < kMostRoundsAhead && node.node_count > 0 &&
                        node.node_count <= kMaxNodes && node.seat >= 0 &&
                        node.seat < node.node_count;
  const bool is_blank = phase_ == Phase::kWaiting && round_number_ == 0;
  if (!policy_.takes_rounds_over || !is_blank || !is_round) return;
  JobRecord record = remembered(node);
  record.is_remembered = false;  // this host had no part in it, and others wait for a round
  recovery_ = Recovery(std::move(record));
  round_number_ = node.round;
  phase_ = Phase::kRecovering;
  for (Member* const waiting : members_.by_arrival(MemberState::kWaiting))
    members_.set_state(*waiting, MemberState::kSpare);
}

// It asks for a seat. It may have asked before, or it did not hear that it has one.
Outcome Membership::rejoined(Member& member, const ResumeRequest& node, const PeerInfo& observed,
                             Time now) {
  const bool asked = member.state == MemberState::kWaiting || member.state == MemberState::kSpare;
  const bool is_seated = member.in_round() && node.round < round_number_ && !seats_.empty();
  if (member.in_round() && node.round == round_number_) return gave_up(member, node, now);
  if (!asked && !is_seated) return joined(member.session(), node.spec, observed, now);
  Outcome outcome;
  if (is_seated)
    outcome.deliveries.push_back(
        {member.session(),
         RoundPublished{round_, seats_.at(static_cast<std::size_t>(member.last_seat()))}});
  settle(outcome, now);
  return outcome;
}

// Its lease ended before it came back, and it has ended its workers.
Outcome Membership::gave_up(Member& member, const ResumeRequest& node, Time now) {
  Outcome outcome;
  members_.set_spec(member, node.spec, PeerInfo(member.entrant.observed));
  members_.set_state(member, MemberState::kWaiting);
  const Failure cause = lost_node(member, "its lease ended, and it ended its workers");
  strike(member, cause, now, outcome);
  break_round(cause, now, outcome);
  settle(outcome, now);
  return outcome;
}

// Returns why a node that comes back to a new leader is turned away. Returns nothing if it is not.
std::optional<HostMessage> Membership::refusal(SessionId session, const ResumeRequest& node,
                                               const PeerInfo& observed) const {
  if (phase_ == Phase::kEnded) return end_for(node.round);
  const auto error = validate(session, node.spec, given_, members_);
  if (!error) return std::nullopt;
  return SessionLost{error->error_for(observed)};
}

// A node that this leader sees for the first time.
void Membership::returned(SessionId session, const ResumeRequest& node, const PeerInfo& observed,
                          Time now, Outcome& outcome) {
  Member& member = members_.add(session);
  if (auto last = refusal(session, node, observed)) {
    members_.set_state(member, MemberState::kDismissed);
    return outcome.deliveries.push_back({session, *std::move(last)});
  }
  members_.set_spec(member, node.spec, observed);
  mark_if_struck(member);
  const bool recovers = phase_ == Phase::kRecovering;
  const bool is_back = recovery_.take(node.round, node.seat, node.node_count);
  if (is_back) member.entrant.previous_seat = node.seat;
  const bool has_workers = node.state != NodeState::kJoining;
  const bool is_late = !recovers && seats_held() >= policy_.max_nodes;
  if (has_workers && !(is_back && recovers)) {
    if (is_back && !is_late) members_.set_state(member, MemberState::kStopping);
    return disbelieve(member, node, outcome);
  }
  if (!is_back || is_late) return;  // a spare
  if (node.state == NodeState::kRunning) return members_.set_state(member, MemberState::kRunning);
  if (node.state == NodeState::kSucceeded)
    return members_.set_state(member, MemberState::kSucceeded);
  members_.set_state(member, has_workers ? MemberState::kStopping : MemberState::kWaiting);
  if (recovers) break_as_reported(node, now, outcome);
}

// A node that this leader knows, over another connection.
void Membership::came_back(Member& member, const ResumeRequest& node, Time now, Outcome& outcome) {
  const bool was_in_round = member.in_round();
  const bool is_in_place =
      was_in_round && node.round == round_number_ && node.seat == member.last_seat();
  if (is_in_place && node.state == NodeState::kRunning) return;
  if (is_in_place && node.state == NodeState::kSucceeded) {
    members_.set_state(member, MemberState::kSucceeded);
    return end_if_all_succeeded(outcome);
  }
  disbelieve(member, node, outcome);
  if (is_in_place) return break_as_reported(node, now, outcome);
  if (was_in_round)
    break_round(lost_node(member, fmt::format("it came back with round {}", node.round)), now,
                outcome);
}

// It must end its workers and join. If the round that it speaks of broke, it is told why.
void Membership::disbelieve(Member& member, const ResumeRequest& node, Outcome& outcome) {
  // A node that has a seat keeps it.
  const bool has_seat = member.holds_seat();
  if (!has_seat) member.entrant.previous_seat = -1;
  members_.set_state(member, has_seat ? MemberState::kStopping : MemberState::kDisbelieved);
  if (node.state == NodeState::kStopping) return;  // it knows
  RoundBroken message = last_break_;
  if (message.round != node.round)
    message = {.round = node.round,
               .cause = {.hostname = node.spec.hostname,
                         .message = fmt::format("the leader knows of no seat {} of round {} for {}",
                                                node.seat, node.round, node.spec.hostname)}};
  outcome.deliveries.push_back({member.session(), message});
}

HostMessage Membership::end_for(std::int64_t round) const {
  if (end_ && round == round_number_) return *end_;
  return SessionLost{over()};
}

// The leader before had broken the round, and not all of its nodes have heard of it.
void Membership::break_as_reported(const ResumeRequest& node, Time now, Outcome& outcome) {
  strike(node.cause.hostname, node.cause, now, outcome);
  if (!node.is_resize) return break_round(node.cause, now, outcome);
  stop_round({.round = round_number_, .cause = node.cause, .is_resize = true}, outcome);
}

void Membership::begin_recovery(Time now, Outcome& outcome) {
  if (!recovery_.begin({policy_.recovery_limit, policy_.return_limit}, now)) return;
  const JobRecord& record = recovery_.record();
  budget_.resume(record.restarts, record.rules, now);
  if (!record.leader_has_seat) return;
  leader_lost_ = {
      .hostname = record.leader,
      .message = fmt::format("the node that led the rendezvous ({}) was lost", record.leader),
      .fault = NodeFault::kLost};
  const bool may_restart = RestartBudget(budget_).take(now);
  strike(record.leader, *leader_lost_, now, outcome);
  if (may_restart) break_round(*std::exchange(leader_lost_, std::nullopt), now, outcome);
}

// A job that died as a whole has no node that comes back before all leases are over. The nodes that
// have come meanwhile are the next job of its id, with all of its restarts.
void Membership::look_whether_any_is_back(Time now) {
  const bool may_be_dead = recovery_.is_open() && recovery_.record().leader_has_seat;
  if (!may_be_dead || recovery_.any_back() || recovery_.unknown() > 0) return;
  if (recovery_.missing() > 0 && now < recovery_.workers_until()) return;
  leader_lost_.reset();
  strikes_.forgive(recovery_.record().leader);
  budget_ = RestartBudget(policy_.jitter_seed);
  recovery_.close();
}

void Membership::look_who_is_back(Time now, Outcome& outcome) {
  if (recovery_.all_back()) {
    phase_ = Phase::kRunning;
    recovery_.close();
    return end_if_all_succeeded(outcome);
  }
  look_again_at_ = recovery_.workers_until();
  if (now < look_again_at_) return;
  look_again_at_ = Time::max();
  const JobRecord& record = recovery_.record();
  break_round({.hostname = record.leader,
               .message = fmt::format("{} of {} nodes did not come back to the next leader of the "
                                      "rendezvous within {} s",
                                      recovery_.missing(), record.node_count(),
                                      in_seconds(policy_.recovery_limit))},
              now, outcome);
}

}  // namespace ddprun::rendezvous
