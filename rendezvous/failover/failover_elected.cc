// Failover with kElectedHost: the nodes elect who leads.
#include <fmt/format.h>

#include <utility>
#include <variant>

#include "rendezvous/failover/failover.h"

namespace ddprun::rendezvous {

namespace {

// Returns whether the peer at the leader's address refused us. It may be another: an impostor, or a
// process that got the port of a leader that died.
bool is_unproven(const SessionLost& lost) {
  const ErrorCode code = lost.error.code();
  return !lost.was_reached && (code == ErrorCode::kRejected || code == ErrorCode::kProtocol);
}

// The workers of a node that was suspended go on for so long before it has a leader again. By the
// other time that leader has said that the round is over.
constexpr std::chrono::milliseconds kLeaderAskLimit{2000};
constexpr std::chrono::seconds kAnswerLimit{5};

// By then a leader that died has lost its key to another. A peer that still is at its address and
// refuses us is believed.
constexpr std::chrono::seconds kUnprovenLimit{6};

void append(FailoverActions& actions, FailoverActions more) {
  for (FailoverAction& action : more) actions.push_back(std::move(action));
}

}  // namespace

// ---- what the election brings ----

FailoverActions Failover::leader_found(const std::string& hostname, Time lease_ends) {
  if (is_over_) return {};
  FailoverActions actions;
  if (host_ == HostState::kFollowing) change_leader(hostname, lease_ends, actions);
  if (leader_ != hostname) unproven_since_.reset();
  leader_ = hostname;
  host_ = HostState::kConnecting;
  actions.emplace_back(CloseSession{});
  actions.emplace_back(OpenSession{});
  return actions;
}

// The leader that let this node in may be suspended, or cut off. Its lease holds.
void Failover::change_leader(const std::string& next, Time lease_ends, FailoverActions& actions) {
  if (!std::exchange(waits_, true)) actions.emplace_back(BeginWait{});
  lost_ = {
      .error = Error(ErrorCode::kUnavailable, fmt::format("{} leads the rendezvous now", next)),
      .lease_ends = lease_ends};
  actions.emplace_back(AbandonSession{});
  const bool keeps = rules_.keeps_workers && memory_.is_in_round();
  const bool is_told = keeps && !memory_.has_left();
  actions.emplace_back(Log{.line = lost_.error.message() + (is_told ? "; the workers go on" : "")});
  if (!memory_.is_in_round()) return;
  workers_until_ = lease_ends;
  if (!keeps) return break_round(lost_, actions);
  workers_ = Workers::kOnLease;
  look_again_at_ = lease_ends;
}

FailoverActions Failover::elected(JobRecord record) {
  if (is_over_) return {};
  FailoverActions actions = {
      CloseSession{},
      Log{.is_warning = false,
          .line = fmt::format(
              "this node leads the rendezvous from now on; rounds so far: {}, restarts: {}",
              record.round, record.restarts)}};
  host_ = HostState::kLeading;
  leader_ = "this node";
  remember(record, actions);
  if (leader_lives_) {
    record.others = record.node_count();
    record.leader_has_seat = false;
  }
  actions.emplace_back(HostHere{std::move(record)});
  append(actions, admitted_by_leader());
  return actions;
}

// All of a job was suspended for so long that etcd has forgotten it. The next leader must know its
// round.
void Failover::remember(JobRecord& record, FailoverActions& actions) const {
  if (record.round != 0 || !rules_.keeps_workers || !memory_.is_round_whole()) return;
  record = remembered(memory_.resumed());
  JobRecord kept = record;
  --kept.others;
  kept.leader_has_seat = true;
  kept.is_remembered = false;
  actions.emplace_back(RecordJob{std::move(kept)});
}

// From now on the session says when the lease ends.
FailoverActions Failover::admitted_by_leader() {
  if (is_over_) return {};
  if (host_ == HostState::kConnecting) host_ = HostState::kFollowing;
  FailoverActions actions;
  end_wait(actions);
  unproven_since_.reset();
  last_loss_.clear();
  leader_lives_ = false;
  workers_until_ = {};
  workers_ = memory_.is_in_round() ? Workers::kRunning : Workers::kNone;
  look_again_at_ = Time::max();
  if (host_ == HostState::kFollowing) actions.emplace_back(AcceptLeader{});
  actions.emplace_back(Replay{});
  return actions;
}

FailoverActions Failover::lost_leadership(const std::string& why, bool was_suspended, Time now) {
  if (host_ != HostState::kLeading) return {};
  SessionLost lost{
      .error = Error(ErrorCode::kLostLeadership, "this node leads the rendezvous no more: " + why),
      .is_fenced = true};
  FailoverActions actions = {DismissNodes{lost.error}};
  if (is_over_) return actions;
  if (was_suspended && rules_.keeps_workers) ask(lost, now);
  append(actions, leadership_lost(std::move(lost), now));
  return actions;
}

FailoverActions Failover::job_over(bool succeeded) {
  const std::string& why = lost_.error.message();
  return end(
      succeeded,
      JobEnded{.succeeded = succeeded,
               .cause = {.hostname = leader_,
                         .message = why.empty() ? "the job failed while this node had no leader"
                                                : fmt::format("the leader of the rendezvous was "
                                                              "lost ({}), and the job failed",
                                                              why)}});
}

FailoverActions Failover::gave_up(const Error& error) { return end(false, SessionLost{error}); }

FailoverActions Failover::end(bool succeeded, const HostMessage& message) {
  is_over_ = true;
  FailoverActions actions;
  end_wait(actions);
  actions.emplace_back(EndJob{succeeded});
  actions.emplace_back(Deliver{message});
  return actions;
}

// ---- what the leader says ----

FailoverActions Failover::elected_message(const HostMessage& message, Time now) {
  if (std::holds_alternative<RoundPublished>(message)) return {RoundBegins{}, Deliver{message}};
  if (const auto* ended = std::get_if<JobEnded>(&message)) return end(ended->succeeded, message);
  if (const auto* lost = std::get_if<SessionLost>(&message)) {
    if (is_over_ || !is_leader_lost(*lost, now)) return end(false, message);
    if (host_ == HostState::kLeading) return leadership_lost(*lost, now);
    return host_ == HostState::kFollowing ? leader_lost(*lost, now) : try_failed(*lost, now);
  }
  const auto* const broken = std::get_if<RoundBroken>(&message);
  if (broken == nullptr || now >= asks_until_) return {Deliver{message}};
  // The others may have gone on while this node was suspended.
  RoundBroken fenced = *broken;
  fenced.is_fenced = true;
  return {Deliver{fenced}};
}

// Returns whether the next leader may take us. Everything else was said by a leader that lives.
bool Failover::is_leader_lost(const SessionLost& lost, Time now) {
  const ErrorCode code = lost.error.code();
  if (code == ErrorCode::kUnavailable || code == ErrorCode::kLostLeadership) return true;
  if (code == ErrorCode::kTimedOut && !lost.was_reached) return true;
  if (!is_unproven(lost)) return false;
  if (!unproven_since_) unproven_since_ = now;
  return now - *unproven_since_ < kUnprovenLimit;
}

// ---- three ways to be without a leader ----

// A node that was suspended asks first: its workers go on until it is known who leads now. If
// nobody led meanwhile, nothing is lost.
void Failover::ask(SessionLost& lost, Time now) {
  asks_until_ = now + kAnswerLimit;
  lost.is_fenced = false;
  lost.lease_ends = now + kLeaderAskLimit;
  lost.may_return = true;
}

// The leader that let this node in is gone. Its lease may hold for a while.
FailoverActions Failover::leader_lost(SessionLost lost, Time now) {
  if (lost.was_suspended && rules_.keeps_workers) ask(lost, now);
  FailoverActions actions;
  leave_session(lost.is_fenced, actions);
  leader_lives_ = leader_lives_ || lost.error.code() == ErrorCode::kLostLeadership;
  hold_lease(lost, now, actions);
  look_for_next(lost, now, actions);
  return actions;
}

// This node does not lead any more. If it asks (`may_return`), it has a lease, as a guest has.
FailoverActions Failover::leadership_lost(SessionLost lost, Time now) {
  FailoverActions actions;
  leave_session(false, actions);
  if (lost.may_return) {
    leader_lives_ = leader_lives_ || lost.error.code() == ErrorCode::kLostLeadership;
    hold_lease(lost, now, actions);
  } else if (!memory_.is_in_round()) {
    actions.emplace_back(LimitWorkers{});
  }
  look_for_next(lost, now, actions);
  return actions;
}

// No leader let this node in. That changes no lease: a leader that dies may still take a
// connection.
FailoverActions Failover::try_failed(const SessionLost& lost, Time now) {
  FailoverActions actions;
  leave_session(lost.is_fenced, actions);
  if (!memory_.is_in_round()) actions.emplace_back(LimitWorkers{});
  look_for_next(lost, now, actions);
  return actions;
}

void Failover::leave_session(bool is_fenced, FailoverActions& actions) {
  is_fenced ? actions.emplace_back(FenceSession{}) : actions.emplace_back(CloseSession{});
  if (!std::exchange(waits_, true)) actions.emplace_back(BeginWait{});
}

void Failover::hold_lease(SessionLost& lost, Time now, FailoverActions& actions) {
  // The lease ended while this process was suspended.
  if (lost.lease_ends != Time{} && lost.lease_ends <= now) lost.is_fenced = true;
  if (!memory_.is_in_round()) {
    actions.emplace_back(LimitWorkers{});
  } else if (!lost.is_fenced && lost.lease_ends > now) {
    workers_until_ = look_again_at_ = lost.lease_ends;
    workers_ = rules_.keeps_workers && lost.may_return ? Workers::kOnLease : Workers::kEnding;
    lost_ = lost;
    actions.emplace_back(LimitWorkers{workers_until_});
  }
}

// A leader that is tried again and again is told of once.
void Failover::look_for_next(const SessionLost& lost, Time now, FailoverActions& actions) {
  const bool keeps = workers_ == Workers::kOnLease && now < workers_until_;
  const std::string& why = lost.error.message();
  const bool is_news = why != std::exchange(last_loss_, why);
  if (!keeps && memory_.is_in_round()) {
    break_round(lost, actions);  // the agent tells of it
  } else if (is_news) {
    actions.emplace_back(
        Log{.line = fmt::format("{}; looking for {}", why,
                                keeps && !memory_.has_left() ? "the leader, and the workers go on"
                                                             : "the next leader")});
  }
  // This comes after that. It waits for slow nodes, and workers had to be ended at once.
  if (host_ == HostState::kLeading) actions.emplace_back(StopHosting{});
  host_ = HostState::kSearching;
  actions.emplace_back(LookForLeader{lost.was_closed});
}

// A leader that lost its leadership may be followed by another at once. Then our workers must not
// have a grace, as at the end of a lease.
void Failover::break_round(const SessionLost& lost, FailoverActions& actions) {
  if (lost.is_fenced) workers_until_ = {};
  workers_ = lost.is_fenced ? Workers::kFenced : Workers::kEnding;
  broken({.round = memory_.round(),
          .cause = {.hostname = leader_,
                    .message = fmt::format("the leader of the rendezvous ({}) was lost: {}",
                                           leader_, lost.error.message())},
          .is_fenced = lost.is_fenced || lost.error.code() == ErrorCode::kLostLeadership},
         actions);
}

}  // namespace ddprun::rendezvous
