#include "rendezvous/membership.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "proto/assert.h"
#include "rendezvous/admission.h"

namespace ddprun::rendezvous {
namespace {

double seconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

// What the other nodes are told when a node is unreachable. No worker is to blame, so rank and exit
// code keep their defaults.
Failure lost_node(const Member& member, const std::string& how) {
  const std::string& hostname = member.entrant.spec.hostname;
  return {.hostname = hostname,
          .message = fmt::format("node {} ({}) was lost: {}", member.last_seat(), hostname, how)};
}

Await awaited(Reason reason) {
  if (reason == Reason::kLastCall) return Await::kLastCall;
  if (reason == Reason::kBackoff) return Await::kRestartPause;
  if (reason == Reason::kReturning || reason == Reason::kLeaving) return Await::kOldWorkers;
  return Await::kNodes;
}

// For nodes that join after the end: they are told how the job went.
std::string end_text(const JobEnded& end) {
  if (end.succeeded) return "it succeeded";
  return fmt::format("it failed on {}: {}", end.cause.hostname, end.cause.message);
}

}  // namespace

Membership::Membership(RoundPolicy policy, JobRecord record)
    : policy_(policy), round_number_(record.round), budget_(policy.jitter_seed) {
  awaits_returning_ = record.round > 0;
  if (awaits_returning_) resumed_ = std::move(record);
  DDPRUN_ASSERT(policy.min_nodes >= 1);
  DDPRUN_ASSERT(policy.min_nodes <= policy.max_nodes);
  DDPRUN_ASSERT(policy.max_nodes <= kMaxNodes);
  DDPRUN_ASSERT(policy.node_unit >= 1);
  DDPRUN_ASSERT(policy.min_nodes % policy.node_unit == 0);
  DDPRUN_ASSERT(policy.max_nodes % policy.node_unit == 0);
}

// ---- events ----

Outcome Membership::joined(SessionId session, const NodeSpec& spec, const Observed& observed,
                           Time now) {
  Outcome outcome;
  unjoined_.erase(session);
  // A refused node becomes a member, too: it counts in kMaxMembers until its session is lost.
  Member* const known = members_.find(session);
  const bool is_new = known == nullptr;
  if (!is_new && !known->listens()) return outcome;
  Member& member = is_new ? members_.add(session) : *known;
  std::optional<Error> error;
  const bool out_of_turn = !is_new && member.standing != Standing::kStopping;
  // Asked before the standing changes. break_round() comes after the change, so that this node gets
  // SessionLost only and no RoundBroken.
  const bool breaks_round = member.in_round();
  if (out_of_turn) {
    error = Error(ErrorCode::kProtocol, "rendezvous: this node asked for a round while in one");
  } else {
    error = phase_ == Phase::kEnded
                ? Error(ErrorCode::kRejected, "rendezvous: the job is over already: " + end_text_)
                : objection(session, spec, policy_, members_);
  }
  if (error) {
    members_.set_standing(member, Standing::kDismissed);
    // Told on the host too: its job waits for a node that the user thinks is there.
    if (differs(spec, policy_)) outcome.notes.push_back(error->message());
    outcome.deliveries.push_back({session, SessionLost{*error}});
  } else {
    members_.set_spec(member, spec, observed);
    // A node of the broken round has kept its seat. A new node gets one from settle() if one is
    // free.
    members_.set_standing(member, is_new ? Standing::kSpare : Standing::kWaiting);
  }
  if (breaks_round)
    break_round(lost_node(member, "it asked for a round while in one"), now, outcome);
  if (resumed_) resume(*std::exchange(resumed_, std::nullopt), now, outcome);
  settle(outcome, now);
  return outcome;
}

Outcome Membership::failed(SessionId session, std::int64_t round, const Failure& failure,
                           Time now) {
  Outcome outcome;
  if (!speaks_of_this_round(members_.find(session), round)) return outcome;
  break_round(failure, now, outcome);
  settle(outcome, now);
  return outcome;
}

Outcome Membership::succeeded(SessionId session, std::int64_t round, Time now) {
  Outcome outcome;
  Member* const member = members_.find(session);
  if (!speaks_of_this_round(member, round)) return outcome;
  members_.set_standing(*member, Standing::kSucceeded);
  if (members_.count(Standing::kRunning) == 0) end_job({.succeeded = true, .cause = {}}, outcome);
  settle(outcome, now);
  return outcome;
}

Outcome Membership::left(SessionId session, const Failure& reason, Time now) {
  Outcome outcome;
  Member* const member = members_.find(session);
  if (member == nullptr || !member->listens()) return outcome;
  if (member->standing == Standing::kSucceeded) return lost_after_success(*member);
  // A spare holds no seat. For one that was in no round yet the others wait for somebody else.
  const bool is_needed = member->standing != Standing::kSpare && member->last_seat() >= 0;
  const bool breaks_round = member->in_round();
  const bool has_workers = breaks_round || member->standing == Standing::kStopping;
  members_.set_standing(*member, has_workers ? Standing::kLeaving : Standing::kDismissed);
  if (is_needed && members_.listeners() < policy_.min_nodes) {
    end_job({.succeeded = false, .cause = reason}, outcome);
  } else if (breaks_round) {
    stop_round({.round = round_number_, .cause = reason, .is_resize = true}, outcome);
  }
  settle(outcome, now);
  return outcome;
}

Outcome Membership::host_left(SessionId session, const Failure& reason, Time now) {
  Outcome outcome;
  Member* const member = members_.find(session);
  if (member == nullptr || !member->listens()) return outcome;
  members_.set_standing(*member, Standing::kDismissed);
  end_job({.succeeded = false, .cause = reason}, outcome);
  settle(outcome, now);
  return outcome;
}

Outcome Membership::session_lost(SessionId session, const std::string& how, Time now) {
  Outcome outcome;
  Member* const member = members_.find(session);
  if (member == nullptr) {
    if (unjoined_.erase(session) > 0) settle(outcome, now);
    return outcome;
  }
  if (member->standing == Standing::kSucceeded) return lost_after_success(*member);
  const bool breaks_round = member->in_round();
  const Failure cause = lost_node(*member, how);
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

// ---- who is here ----

// Whether a report counts. It does not if the node reported the end of its round already, or if it
// speaks of another round: such a message was under way when the round broke.
bool Membership::speaks_of_this_round(const Member* member, std::int64_t round) const {
  return member != nullptr && member->standing == Standing::kRunning && round == round_number_;
}

// ---- what follows ----

// Every event ends with this: it gives free seats to spares, then starts the round if it may start,
// or sets when to look again.
void Membership::settle(Outcome& outcome, Time now) {
  look_again_at_ = Time::max();
  if (phase_ == Phase::kRunning) consider_resize(now, outcome);
  if (phase_ != Phase::kGathering) return;
  promote_spares();
  update_times(now);
  const Roster roster{.waiting = members_.count(Standing::kWaiting),
                      .returning = stopping(),
                      .leaving = members_.count(Standing::kLeaving),
                      .awaited = awaited_ - members_.count(Standing::kWaiting),
                      .awaited_until = awaited_until_,
                      .is_first = round_number_ == 0,
                      .gathering_since = gathering_since_.value_or(now),
                      .min_reached_at = min_reached_at_.value_or(now),
                      .not_before = budget_.not_before()};
  const Decision decision = decide(roster, policy_, now);
  reason_ = decision.reason;
  switch (decision.choice) {
    case Choice::kWait:
      look_again_at_ = decision.look_again_at;
      return;
    case Choice::kClose:
      return publish(now, outcome);
    case Choice::kGiveUp:
      return give_up(outcome);
  }
}

std::optional<Gathering> Membership::gathering(Time now) const {
  if (phase_ == Phase::kEnded) return std::nullopt;
  const bool runs = phase_ == Phase::kRunning;
  const bool grows = runs && look_again_at_ != Time::max();
  Gathering gathering{.awaits = grows  ? Await::kResize
                                : runs ? Await::kSeat
                                       : awaited(reason_),
                      .have = members_.count(runs ? Standing::kRunning : Standing::kWaiting),
                      .min_nodes = policy_.min_nodes,
                      .max_nodes = policy_.max_nodes};
  if (look_again_at_ == Time::max()) return gathering;
  gathering.ends_in = std::chrono::ceil<std::chrono::milliseconds>(look_again_at_ - now);
  if (!runs) gathering.missing = missing_ranks();
  return gathering;
}

// Known only where nodes come with ranks that they must have, and all of them are needed.
std::string Membership::missing_ranks() const {
  if (policy_.min_nodes != policy_.max_nodes || policy_.max_nodes > kMissingSearched ||
      !members_.has_claimed_ranks())
    return {};
  std::vector<int> missing;
  for (int rank = 0; rank < policy_.max_nodes && missing.size() <= kMissingShown; ++rank)
    if (members_.holder_of_rank(rank) == nullptr) missing.push_back(rank);
  const bool more = missing.size() > kMissingShown;
  if (more) missing.pop_back();
  return fmt::format("{}{}", fmt::join(missing, ", "), more ? ", …" : "");
}

// A node holds a seat if it waits for the next round or will be back for it. So a spare never takes
// the seat of a node that is only slow to stop its workers.
void Membership::promote_spares() {
  int free_seats =
      policy_.max_nodes - members_.count(Standing::kWaiting) - members_.count(Standing::kStopping);
  while (free_seats-- > 0) {
    Member* const spare = members_.first_spare();
    if (spare == nullptr) return;
    members_.set_standing(*spare, Standing::kWaiting);
  }
}

// Each time is set once and stays, until too few nodes wait for it to mean something. A node that
// joins later does not move it.
void Membership::update_times(Time now) {
  const int waiting = members_.count(Standing::kWaiting);
  // While old workers end, nobody is late.
  const bool gathers = waiting > 0 && stopping() == 0 && members_.count(Standing::kLeaving) == 0;
  if (!gathers) gathering_since_.reset();
  if (gathers && !gathering_since_) gathering_since_ = now;
  if (waiting < policy_.min_nodes) min_reached_at_.reset();
  if (waiting >= policy_.min_nodes && !min_reached_at_) min_reached_at_ = now;
}

void Membership::publish(Time now, Outcome& outcome) {
  std::vector<Member*> arrivals = members_.by_arrival(Standing::kWaiting);
  const auto size =
      static_cast<std::size_t>(usable_nodes(static_cast<int>(arrivals.size()), policy_));
  // node_unit leaves no seat for the last ones.
  for (std::size_t i = size; i < arrivals.size(); ++i)
    members_.set_standing(*arrivals[i], Standing::kSpare);
  arrivals.resize(size);
  std::vector<const Entrant*> entrants;
  entrants.reserve(size);
  for (const Member* const member : arrivals) entrants.push_back(&member->entrant);
  const std::vector<std::size_t> order = order_of_seats(entrants);
  for (std::size_t seat = 0; seat < size; ++seat) entrants[seat] = &arrivals[order[seat]]->entrant;
  SeatedRound seated = make_round(++round_number_, budget_.restarts(), entrants);
  Publication publication{std::move(seated.round), std::move(seated.seats), {}};
  publication.sessions.reserve(size);
  for (std::size_t seat = 0; seat < size; ++seat) {
    Member& member = *arrivals[order[seat]];
    members_.set_standing(member, Standing::kRunning);
    member.entrant.previous_seat = static_cast<int>(seat);
    publication.sessions.push_back(member.session());
  }
  set_budget(entrants, now, outcome);
  outcome.published = std::move(publication);
  phase_ = Phase::kRunning;
  awaited_ = 0;
  awaits_returning_ = false;
  unjoined_.clear();
  gathering_since_.reset();
  min_reached_at_.reset();
}

// The job has one budget. If the nodes were started with different ones, the smallest holds: no
// node is restarted more often than its user allowed. Window and backoff are those of node rank 0.
void Membership::set_budget(const std::vector<const Entrant*>& entrants, Time now,
                            Outcome& outcome) {
  const auto [at_least, at_most] = std::ranges::minmax_element(
      entrants, {}, [](const Entrant* entrant) { return entrant->spec.max_restarts; });
  const Entrant* const least = *at_least;
  const Entrant* const most = *at_most;
  const NodeSpec& first = entrants.front()->spec;
  budget_.attempt_started({.max_restarts = least->spec.max_restarts,
                           .window = first.restart_window,
                           .backoff = first.backoff,
                           .backoff_max = first.backoff_max},
                          now);
  if (least->spec.max_restarts == most->spec.max_restarts) return;
  outcome.notes.push_back(
      fmt::format("rendezvous: the nodes differ in max_restarts ({} says {}, {} says {}): the "
                  "smallest, {}, holds for the job",
                  least->spec.hostname, least->spec.max_restarts, most->spec.hostname,
                  most->spec.max_restarts, least->spec.max_restarts));
}

// The round that the record tells of broke with its leader. Its nodes are stopping their workers.
void Membership::resume(const JobRecord& record, Time now, Outcome& outcome) {
  budget_.resume(record.restarts, record.rules, now);
  awaited_ = record.others;
  awaited_until_ = now + policy_.return_limit;
  const Failure cause{
      .hostname = record.leader,
      .message = fmt::format("the node that led the rendezvous ({}) was lost", record.leader)};
  if (!budget_.take(now)) end_job({.succeeded = false, .cause = cause}, outcome);
}

void Membership::break_round(const Failure& cause, Time now, Outcome& outcome) {
  if (!budget_.take(now)) return end_job({.succeeded = false, .cause = cause}, outcome);
  stop_round({.round = round_number_, .cause = cause}, outcome);
}

// Tells the nodes of the round to stop their workers and to come back. Its caller decides whether
// that is a restart.
void Membership::stop_round(const RoundBroken& message, Outcome& outcome) {
  phase_ = Phase::kGathering;
  newcomer_since_.reset();
  // Nodes that went after their success do not come back: their seats are free now.
  members_.erase_gone();
  members_.for_each([&](Member& member) {
    if (!member.in_round()) return;
    members_.set_standing(member, Standing::kStopping);
    outcome.deliveries.push_back({member.session(), message});
  });
}

// Breaks a running round that has room for spares. A round in which a node has finished is let be:
// the job is about to end.
void Membership::consider_resize(Time now, Outcome& outcome) {
  const int running = members_.count(Standing::kRunning);
  const bool ending = members_.count(Standing::kSucceeded) > 0;
  const int spares = ending ? 0 : members_.count(Standing::kSpare);
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
                          members_.count(Standing::kWaiting), policy_.min_nodes,
                          seconds(policy_.join_timeout));
  const Error error(ErrorCode::kTimedOut, "rendezvous: " + end_text_);
  phase_ = Phase::kEnded;
  dismiss_all(SessionLost{error}, outcome);
}

void Membership::end_job(const JobEnded& end, Outcome& outcome) {
  phase_ = Phase::kEnded;
  end_text_ = end_text(end);
  members_.erase_gone();
  dismiss_all(end, outcome);
}

// Gives every node its last message.
void Membership::dismiss_all(const HostMessage& message, Outcome& outcome) {
  members_.for_each([&](Member& member) {
    if (!member.listens()) return;
    members_.set_standing(member, Standing::kDismissed);
    outcome.deliveries.push_back({member.session(), message});
  });
}

}  // namespace ddprun::rendezvous
