#include "rendezvous/core/membership.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/duration.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::chrono::seconds kNoteRefusalEvery{10};

// Nodes that join after the end are told how the job went.
std::string end_text_of(const JobEnded& end) {
  if (end.succeeded) return "it succeeded";
  if (end.is_stopped) return end.cause.message;
  if (end.no_progress) return "it made no progress: " + end.no_progress->sentence;
  return fmt::format("it failed on {}: {}", end.cause.hostname, end.cause.message);
}

}  // namespace

Membership::Membership(RoundPolicy policy, JobRecord record)
    : policy_(policy),
      given_(policy),
      round_number_(record.round),
      budget_(policy.jitter_seed),
      recovery_(std::move(record)) {
  if (recovery_.is_open() && !recovery_.record().leader_has_seat) phase_ = Phase::kRecovering;
  DDPRUN_ASSERT(policy.min_nodes >= 1);
  DDPRUN_ASSERT(policy.min_nodes <= policy.max_nodes);
  DDPRUN_ASSERT(policy.max_nodes <= kMaxNodes);
  DDPRUN_ASSERT(policy.settings.node_unit >= 1);
  DDPRUN_ASSERT(policy.min_nodes % policy.settings.node_unit == 0);
  DDPRUN_ASSERT(policy.max_nodes % policy.settings.node_unit == 0);
}

// ---- events ----

Outcome Membership::joined(SessionId session, const NodeSpec& spec, const PeerInfo& observed,
                           Time now) {
  Outcome outcome;
  recovery_.known(session);
  // A refused node becomes a member, too: it counts in kMaxMembers until its session is lost.
  Member* const known = members_.find(session);
  const bool is_new = known == nullptr;
  if (!is_new && !known->listens()) return outcome;
  Member& member = is_new ? members_.add(session) : *known;
  std::optional<JoinRefusal> error;
  const bool was_stopping = member.state == MemberState::kStopping;
  const bool out_of_turn = !is_new && !was_stopping && member.state != MemberState::kDisbelieved;
  // Asked before the member state changes. break_round() comes after the change, so that this node
  // gets SessionLost only and no RoundBroken.
  const bool breaks_round = member.in_round();
  if (out_of_turn) {
    error = JoinRefusal(
        Error(ErrorCode::kProtocol, "rendezvous: this node asked for a round while in one"));
  } else if (phase_ == Phase::kEnded) {
    error = JoinRefusal(over());
  } else {
    error = validate(session, spec, given_, members_);
  }
  if (error) {
    members_.set_state(member, MemberState::kDismissed);
    note_refusal(*error, observed, now, outcome);
    outcome.deliveries.push_back({session, SessionLost{error->error_for(observed)}});
  } else {
    members_.set_spec(member, spec, observed);
    take_strikes(spec, now);
    mark_if_struck(member);
    // A node of the broken round has kept its seat. A new node gets one from settle() if one is
    // free, and so does one that was not believed. An operator may have taken seats away: publish()
    // says whose.
    const int seats = std::max(policy_.max_nodes, round_.node_count);
    const bool has_seat = was_stopping && !has_round() && seats_held() <= seats;
    members_.set_state(member, has_seat ? MemberState::kWaiting : MemberState::kSpare);
  }
  if (breaks_round)
    break_round(lost_node(member, "it asked for a round while in one"), now, outcome);
  begin_recovery(now, outcome);
  settle(outcome, now);
  return outcome;
}

// Tells it on the host too: its job waits for a node that the user thinks is there. An
// unauthenticated peer may say the same again and again.
void Membership::note_refusal(const JoinRefusal& refusal, const PeerInfo& observed, Time now,
                              Outcome& outcome) {
  if (!refusal.is_the_users || now < note_refusal_at_) return;
  outcome.notes.push_back(refusal.whole.message());
  if (!observed.is_proven) note_refusal_at_ = now + kNoteRefusalEvery;
}

Outcome Membership::failed(SessionId session, std::int64_t round, const Failure& failure,
                           Time now) {
  Outcome outcome;
  const Member* const member = members_.find(session);
  // Another worker's failure was heard first, and its restart has not begun.
  const bool is_late = member != nullptr && member->state == MemberState::kStopping &&
                       round == round_number_ && phase_ == Phase::kWaiting;
  if (!is_late && !speaks_of_this_round(member, round)) return outcome;
  strike(*member, failure, now, outcome);
  if (!is_late) break_round(failure, now, outcome);
  if (is_late && failure.ends_job) end_job({.succeeded = false, .cause = failure}, outcome);
  settle(outcome, now);
  return outcome;
}

Outcome Membership::succeeded(SessionId session, std::int64_t round, Time now) {
  Outcome outcome;
  Member* const member = members_.find(session);
  if (!speaks_of_this_round(member, round)) return outcome;
  members_.set_state(*member, MemberState::kSucceeded);
  end_if_all_succeeded(outcome);
  settle(outcome, now);
  return outcome;
}

Outcome Membership::left(SessionId session, const Failure& reason, Time now) {
  Outcome outcome;
  Member* const member = members_.find(session);
  if (member == nullptr || !member->listens()) return outcome;
  if (member->state == MemberState::kSucceeded) return lost_after_success(*member);
  const bool is_disbelieved = member->state == MemberState::kDisbelieved;
  // Neither holds a seat. For one that was in no round yet the others wait for somebody else.
  const bool is_spare = member->state == MemberState::kSpare || is_disbelieved;
  const bool is_needed = !is_spare && member->last_seat() >= 0;
  const bool breaks_round = member->in_round();
  const bool has_workers =
      breaks_round || is_disbelieved || member->state == MemberState::kStopping;
  strike(*member, reason, now, outcome);
  members_.set_state(*member, has_workers ? MemberState::kLeaving : MemberState::kDismissed);
  if (is_needed && members_.listeners() + recovery_.missing() < policy_.min_nodes) {
    end_job({.succeeded = false, .cause = reason}, outcome);
  } else if (breaks_round) {
    stop_round({.round = round_number_, .cause = reason, .is_resize = true}, outcome);
  }
  settle(outcome, now);
  return outcome;
}

Outcome Membership::drained(SessionId session, const Drain& drain, const Failure& reason,
                            Time now) {
  Outcome outcome = left(session, reason, now);
  outcome.deliveries.insert(outcome.deliveries.begin(), {session, drain});
  if (Member* const member = members_.find(session)) member->drain = drain;
  return outcome;
}

Outcome Membership::host_left(SessionId session, const Failure& reason, Time now) {
  Outcome outcome;
  Member* const member = members_.find(session);
  if (member == nullptr || !member->listens()) return outcome;
  members_.set_state(*member, MemberState::kDismissed);
  end_job({.succeeded = false, .cause = reason}, outcome);
  settle(outcome, now);
  return outcome;
}

Outcome Membership::session_lost(SessionId session, const std::string& how, Time now) {
  Outcome outcome;
  Member* const member = members_.find(session);
  if (member == nullptr) {
    if (recovery_.known(session)) settle(outcome, now);
    return outcome;
  }
  if (member->state == MemberState::kSucceeded) return lost_after_success(*member);
  const bool breaks_round = member->in_round();
  const Failure cause = lost_node(*member, how);
  if (breaks_round) strike(*member, cause, now, outcome);
  struck_.erase(session);
  members_.erase(*member);
  if (breaks_round) break_round(cause, now, outcome);
  settle(outcome, now);
  return outcome;
}

// Its work is done, so the round goes on. It stays a member: its seat is taken until the round is
// over. It may be told twice: a node leaves, and then its session ends.
Outcome Membership::lost_after_success(Member& member) {
  if (!member.gone) members_.set_gone(member);
  return {};
}

Outcome Membership::tick(Time now) {
  Outcome outcome;
  settle(outcome, now);
  return outcome;
}

Outcome Membership::stopped(const JobEnded& end, Time now) {
  Outcome outcome;
  if (phase_ != Phase::kEnded) end_job(end, outcome);
  settle(outcome, now);
  return outcome;
}

Outcome Membership::resized(int min_nodes, int max_nodes, Time now) {
  Outcome outcome;
  policy_.min_nodes = min_nodes;
  policy_.max_nodes = max_nodes;
  resized_at_.reset();  // an operator need not wait for the interval
  const int running = members_.count(MemberState::kRunning);
  // A round that is about to succeed is let be, as in consider_resize().
  const bool ending = members_.count(MemberState::kSucceeded) > 0;
  if (phase_ == Phase::kRunning && running > max_nodes && !ending)
    stop_round({.round = round_number_,
                .cause = {.message = fmt::format("an operator wants at most {} nodes", max_nodes)},
                .is_resize = true},
               outcome);
  settle(outcome, now);
  return outcome;
}

// ---- who is here ----

// Returns whether a report counts. It does not if the node reported the end of its round already,
// or if it speaks of another round. Such a message was under way when the round broke.
bool Membership::speaks_of_this_round(const Member* member, std::int64_t round) const {
  return member != nullptr && member->state == MemberState::kRunning && round == round_number_;
}

// ---- what follows ----

// Gives free seats to spares. Then it starts the round if it may start, or sets when to look again.
void Membership::go_on(Outcome& outcome, Time now) {
  look_again_at_ = Time::max();
  if (phase_ == Phase::kRecovering) look_who_is_back(now, outcome);
  if (phase_ == Phase::kRunning) consider_resize(now, outcome);
  if (phase_ == Phase::kWaiting) look_whether_any_is_back(now);
  if (phase_ != Phase::kWaiting) return;
  promote_spares(now);
  update_times(now);
  const Roster roster{.waiting = members_.count(MemberState::kWaiting),
                      .returning = stopping(),
                      .leaving = members_.count(MemberState::kLeaving),
                      .awaited = recovery_.missing(),
                      .workers_until = recovery_.workers_until(),
                      .awaited_until = recovery_.nodes_until(),
                      .is_first = round_number_ == 0,
                      .waiting_since = waiting_since_.value_or(now),
                      .min_reached_at = min_reached_at_.value_or(now),
                      .not_before = budget_.not_before()};
  const Decision decision = decide(roster, policy_, now);
  reason_ = decision.reason;
  switch (decision.choice) {
    case RoundDecision::kWait:
      look_again_at_ = decision.look_again_at;
      return;
    case RoundDecision::kClose:
      return publish(now, outcome);
    case RoundDecision::kGiveUp:
      return give_up(outcome);
  }
}

std::optional<WaitStatus> Membership::wait_status(Time now) const {
  if (phase_ == Phase::kEnded) return std::nullopt;
  const bool runs = has_round();
  const bool grows = phase_ == Phase::kRunning && look_again_at_ != Time::max();
  WaitStatus wait_status{
      .awaits = grows  ? Await::kResize
                : runs ? Await::kSeat
                       : awaited(reason_),
      .have = members_.count(runs ? MemberState::kRunning : MemberState::kWaiting),
      .min_nodes = policy_.min_nodes,
      .max_nodes = policy_.max_nodes};
  if (look_again_at_ == Time::max()) return wait_status;
  wait_status.ends_in = std::chrono::ceil<std::chrono::milliseconds>(look_again_at_ - now);
  const bool needs_all = policy_.min_nodes == policy_.max_nodes;
  if (!runs && needs_all) wait_status.missing = members_.missing_ranks(policy_.max_nodes);
  return wait_status;
}

// A node holds a seat if it waits for the next round or will be back for it. So a spare never takes
// the seat of a node that is only slow to stop its workers.
void Membership::promote_spares(Time now) {
  unseat_struck(now);
  int free_seats = policy_.max_nodes - seats_held();
  if (now < recovery_.workers_until()) free_seats -= recovery_.missing();
  while (free_seats-- > 0) {
    Member* const spare = next_spare(now);
    if (spare == nullptr) break;
    members_.set_state(*spare, MemberState::kWaiting);
  }
  seat_struck(now);
}

// Each time is set once and stays, until too few nodes wait for it to mean something. A node that
// joins later does not move it.
void Membership::update_times(Time now) {
  const int waiting = members_.count(MemberState::kWaiting);
  // While old workers end, nobody is late.
  const bool waits = waiting > 0 && stopping() == 0 && members_.count(MemberState::kLeaving) == 0;
  if (!waits) waiting_since_.reset();
  if (waits && !waiting_since_) waiting_since_ = now;
  if (waiting < policy_.min_nodes) min_reached_at_.reset();
  if (waiting >= policy_.min_nodes && !min_reached_at_) min_reached_at_ = now;
}

void Membership::publish(Time now, Outcome& outcome) {
  std::vector<Member*> arrivals = members_.by_arrival(MemberState::kWaiting);
  const auto size =
      static_cast<std::size_t>(usable_nodes(static_cast<int>(arrivals.size()), policy_));
  // node_unit leaves no seat for the last ones.
  if (size < arrivals.size()) put_last(arrivals, now);
  for (std::size_t i = size; i < arrivals.size(); ++i)
    members_.set_state(*arrivals[i], MemberState::kSpare);
  arrivals.resize(size);
  std::vector<const Entrant*> entrants;
  entrants.reserve(size);
  for (const Member* const member : arrivals) entrants.push_back(&member->entrant);
  const std::vector<std::size_t> order = order_of_seats(entrants);
  for (std::size_t seat = 0; seat < size; ++seat) entrants[seat] = &arrivals[order[seat]]->entrant;
  round_number_ = std::max(round_number_, known_number_) + 1;
  note_players(now, outcome);
  SeatedRound seated = make_round(round_number_, budget_.restarts(), entrants);
  seated.round.strikes = strikes_.text(now);
  round_ = seated.round;
  seats_ = seated.seats;
  Publication publication{std::move(seated.round), std::move(seated.seats), {}};
  publication.sessions.reserve(size);
  for (std::size_t seat = 0; seat < size; ++seat) {
    Member& member = *arrivals[order[seat]];
    members_.set_state(member, MemberState::kRunning);
    member.entrant.previous_seat = static_cast<int>(seat);
    publication.sessions.push_back(member.session());
  }
  budget_.attempt_started(common_rules(entrants, outcome.notes), now);
  strikes_.set_rules(budget_.rules().strikes);
  outcome.published = std::move(publication);
  phase_ = Phase::kRunning;
  recovery_.close();
  waiting_since_.reset();
  min_reached_at_.reset();
}

void Membership::break_round(const Failure& cause, Time now, Outcome& outcome) {
  progress_.attempt_failed(round_number_, round_.node_count, cause);
  const bool may_restart = !recovery_.only_resumes() && !cause.ends_job && budget_.take(now);
  if (!may_restart) return end_job({.succeeded = false, .cause = cause}, outcome);
  // Asked last: without a restart that is left, it is not the reason.
  if (auto why = progress_.stuck(budget_.rules().most_without_progress))
    return end_job({.succeeded = false, .cause = cause, .no_progress = std::move(why)}, outcome);
  stop_round({.round = round_number_, .cause = cause}, outcome);
}

// Tells the nodes of the round to stop their workers and to come back. Its caller decides whether
// that is a restart.
void Membership::stop_round(const RoundBroken& message, Outcome& outcome) {
  if (recovery_.only_resumes())
    return end_job({.succeeded = false, .cause = message.cause}, outcome);
  outcome.broken = message;
  phase_ = Phase::kWaiting;
  last_break_ = message;
  newcomer_since_.reset();
  // Nodes that went after their success do not come back: their seats are free now.
  members_.erase_gone();
  members_.for_each([&](Member& member) {
    if (!member.in_round()) return;
    members_.set_state(member, MemberState::kStopping);
    outcome.deliveries.push_back({member.session(), message});
  });
}

// Breaks a running round that has room for spares. A round in which a node has finished is let be:
// the job is about to end.
void Membership::consider_resize(Time now, Outcome& outcome) {
  const int running = members_.count(MemberState::kRunning);
  const bool ending = members_.count(MemberState::kSucceeded) > 0;
  const int spares = ending ? 0 : spares_that_play(now);
  const Time at = resize_at(running, spares, newcomer_since_.value_or(now), resized_at_, policy_);
  if (at == Time::max()) return newcomer_since_.reset();
  if (!newcomer_since_) newcomer_since_ = now;
  if (now < at) {
    look_again_at_ = at;
    return;
  }
  resized_at_ = now;
  const int size = usable_nodes(running + spares, policy_);
  stop_round({.round = round_number_,
              .cause = {.message = fmt::format("the job grows from {} to {} nodes", running, size)},
              .is_resize = true},
             outcome);
}

// Too few nodes came in time. The job ends for all that are here.
void Membership::give_up(Outcome& outcome) {
  end_text_ = fmt::format("{} of {} nodes joined within join_timeout={} s",
                          members_.count(MemberState::kWaiting), policy_.min_nodes,
                          in_seconds(policy_.settings.join_timeout));
  const Error error(ErrorCode::kTimedOut, "rendezvous: " + end_text_);
  phase_ = Phase::kEnded;
  outcome.ended = JobEnded{.cause = {.message = end_text_}};
  dismiss_all(SessionLost{error}, outcome);
}

Error Membership::over() const {
  return {ErrorCode::kRejected, "rendezvous: the job is over already: " + end_text_};
}

void Membership::end_if_all_succeeded(Outcome& outcome) {
  if (phase_ == Phase::kRunning && members_.count(MemberState::kRunning) == 0)
    end_job({.succeeded = true, .cause = {}}, outcome);
}

void Membership::end_job(const JobEnded& end, Outcome& outcome) {
  phase_ = Phase::kEnded;
  outcome.ended = end;
  end_ = end;
  end_text_ = end_text_of(end);
  members_.erase_gone();
  dismiss_all(end, outcome);
}

// Gives every node its last message.
void Membership::dismiss_all(const HostMessage& message, Outcome& outcome) {
  members_.for_each([&](Member& member) {
    if (!member.listens()) return;
    members_.set_state(member, MemberState::kDismissed);
    outcome.deliveries.push_back({member.session(), message});
  });
}

}  // namespace ddprun::rendezvous
