#include "rendezvous/membership.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "proto/assert.h"

namespace ddprun::rendezvous {
namespace {

double seconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

// What the other nodes are told when a node is unreachable. No worker is to blame, so rank and exit
// code keep their defaults.
Failure lost_node(const NodeSpec& spec, int node_rank) {
  Failure cause;
  cause.hostname = spec.hostname;
  cause.message = fmt::format("node {} ({}) was lost: its connection to the rendezvous ended",
                              node_rank, spec.hostname);
  return cause;
}

// Why two nodes cannot be in one job; no value if they can. With equal ids their seats could not be
// told apart; with equal ranks they would need the same seat.
std::optional<Error> clash(const NodeSpec& present, const NodeSpec& newcomer) {
  if (present.node_id == newcomer.node_id)
    return Error(ErrorCode::kRejected, fmt::format("rendezvous: node id {} is here already ({})",
                                                   newcomer.node_id, present.hostname));
  if (newcomer.node_rank >= 0 && present.node_rank == newcomer.node_rank)
    return Error(ErrorCode::kRejected,
                 fmt::format("rendezvous: node rank {} is taken already by {}", newcomer.node_rank,
                             present.hostname));
  return std::nullopt;
}

// Whether the node was given another --nnodes than the host.
bool differs(const NodeSpec& spec, const RoundPolicy& policy) {
  return spec.max_nodes != 0 &&
         (spec.min_nodes != policy.min_nodes || spec.max_nodes != policy.max_nodes);
}

// As --nnodes has it: "2" or "2:4".
std::string node_range(int min, int max) {
  return min == max ? fmt::format("{}", min) : fmt::format("{}:{}", min, max);
}

// For nodes that join after the end: they are told how the job went.
std::string end_text(const JobEnded& end) {
  if (end.succeeded) return "it succeeded";
  return fmt::format("it failed on {}: {}", end.cause.hostname, end.cause.message);
}

}  // namespace

Membership::Membership(RoundPolicy policy) : policy_(policy), budget_(policy.jitter_seed) {
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
  // A refused node becomes a member, too: it counts in kMaxNodes until its session is lost.
  const auto [found, is_new] = members_.try_emplace(session);
  Member& member = found->second;
  if (is_new) {
    member.arrival = ++arrivals_;
  } else if (member.standing == Standing::kDismissed) {
    return outcome;
  }
  std::optional<Error> error;
  const bool out_of_turn = !is_new && member.standing != Standing::kStopping;
  // Asked before the standing changes. break_round() comes after the change, so that this node gets
  // SessionLost only and no RoundBroken.
  const bool breaks_round = member.in_round();
  if (out_of_turn) {
    error = Error(ErrorCode::kProtocol, "rendezvous: this node asked for a round while in one");
  } else {
    error = objection(session, spec);
  }
  if (error) {
    member.standing = Standing::kDismissed;
    // Told on the host too: its job waits for a node that the user thinks is there.
    if (differs(spec, policy_)) outcome.notes.push_back(error->message());
    outcome.deliveries.push_back({session, SessionLost{*error}});
  } else {
    member.entrant = {session, spec, observed};
    // A node of the broken round has kept its seat. A new node gets one from settle() if one is
    // free. The same holds for a node that was so slow to stop that the next round runs without it.
    member.standing = is_new || phase_ != Phase::kGathering ? Standing::kSpare : Standing::kWaiting;
  }
  if (breaks_round) break_round(lost_node(member.entrant.spec, member.seat), now, outcome);
  settle(outcome, now);
  return outcome;
}

Outcome Membership::failed(SessionId session, std::int64_t round, const Failure& failure,
                           Time now) {
  Outcome outcome;
  if (!speaks_of_this_round(find(session), round)) return outcome;
  break_round(failure, now, outcome);
  settle(outcome, now);
  return outcome;
}

Outcome Membership::succeeded(SessionId session, std::int64_t round, Time now) {
  Outcome outcome;
  Member* member = find(session);
  if (!speaks_of_this_round(member, round)) return outcome;
  member->standing = Standing::kSucceeded;
  if (count(Standing::kRunning) == 0) end_job({.succeeded = true, .cause = {}}, outcome);
  settle(outcome, now);
  return outcome;
}

Outcome Membership::left(SessionId session, const Failure& reason, Time now) {
  Outcome outcome;
  Member* member = find(session);
  if (member == nullptr || member->standing == Standing::kDismissed) return outcome;
  const bool alone = member->standing == Standing::kSpare;  // it holds no seat: nobody needs it
  const bool breaks_round = member->in_round();
  member->standing = Standing::kDismissed;
  const auto remaining =
      std::ranges::count_if(members_, [](const auto& entry) { return entry.second.listens(); });
  if (!alone && remaining < policy_.min_nodes) {
    end_job({.succeeded = false, .cause = reason}, outcome);
  } else if (breaks_round) {
    stop_round({.round = round_number_, .cause = reason, .is_resize = true}, outcome);
  }
  settle(outcome, now);
  return outcome;
}

Outcome Membership::host_left(SessionId session, const Failure& reason, Time now) {
  Outcome outcome;
  Member* member = find(session);
  if (member == nullptr || member->standing == Standing::kDismissed) return outcome;
  member->standing = Standing::kDismissed;
  end_job({.succeeded = false, .cause = reason}, outcome);
  settle(outcome, now);
  return outcome;
}

Outcome Membership::session_lost(SessionId session, Time now) {
  Outcome outcome;
  const auto found = members_.find(session);
  if (found == members_.end()) return outcome;
  Member& member = found->second;
  if (member.standing == Standing::kSucceeded) {
    // Its work is done, so the round goes on. It stays a member: its seat is taken until the round
    // is over.
    member.gone = true;
    return outcome;
  }
  const bool breaks_round = member.in_round();
  const Failure cause = lost_node(member.entrant.spec, member.seat);
  members_.erase(found);
  if (breaks_round) break_round(cause, now, outcome);
  settle(outcome, now);
  return outcome;
}

Outcome Membership::tick(Time now) {
  Outcome outcome;
  settle(outcome, now);
  return outcome;
}

// ---- who is here ----

Membership::Member* Membership::find(SessionId session) {
  const auto found = members_.find(session);
  return found == members_.end() ? nullptr : &found->second;
}

// Whether a report counts. It does not if the node reported the end of its round already, or if it
// speaks of another round: such a message was under way when the round broke.
bool Membership::speaks_of_this_round(const Member* member, std::int64_t round) const {
  return member != nullptr && member->standing == Standing::kRunning && round == round_number_;
}

int Membership::count(Standing standing) const {
  return static_cast<int>(std::ranges::count_if(
      members_, [&](const auto& entry) { return entry.second.standing == standing; }));
}

// In the order of the first joins and not of the last ones: so a node keeps its node rank over a
// restart if the same nodes come back.
std::vector<SessionId> Membership::by_arrival(Standing standing) const {
  std::vector<SessionId> sessions;
  for (const auto& [session, member] : members_)
    if (member.standing == standing) sessions.push_back(session);
  std::ranges::sort(sessions, {}, [&](SessionId session) { return members_.at(session).arrival; });
  return sessions;
}

// Why `spec` cannot be in this job at all; no value if it can. The codec has checked lengths only.
std::optional<Error> Membership::objection(SessionId session, const NodeSpec& spec) const {
  if (phase_ == Phase::kEnded)
    return Error(ErrorCode::kRejected, "rendezvous: the job is over already: " + end_text_);
  if (differs(spec, policy_))
    return Error(ErrorCode::kRejected,
                 fmt::format("rendezvous: {} was started with --nnodes={}, the job's host with "
                             "--nnodes={}: all nodes must be given the same",
                             spec.hostname, node_range(spec.min_nodes, spec.max_nodes),
                             node_range(policy_.min_nodes, policy_.max_nodes)));
  if (spec.local_world_size < 1 || spec.local_world_size > kMaxLocalWorldSize)
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("rendezvous: a node with {} workers: expected 1 to {}",
                             spec.local_world_size, kMaxLocalWorldSize));
  if (spec.node_rank < -1 || spec.node_rank >= policy_.max_nodes)
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("rendezvous: node rank {} is out of range: the job has {} node(s), "
                             "their ranks are 0 to {}",
                             spec.node_rank, policy_.max_nodes, policy_.max_nodes - 1));
  // The newcomer is one of members_ already.
  if (std::ssize(members_) > kMaxNodes)
    return Error(ErrorCode::kLimit, fmt::format("rendezvous: more than {} nodes", kMaxNodes));
  for (const auto& [other, member] : members_) {
    // A refused node and one that is gone need no seat in a later round: id and rank are free.
    if (other == session || !member.listens()) continue;
    if (auto error = clash(member.entrant.spec, spec)) return error;
  }
  return std::nullopt;
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
  const Roster roster{.waiting = count(Standing::kWaiting),
                      .returning = count(Standing::kStopping),
                      .is_first = round_number_ == 0,
                      .gathering_since = gathering_since_.value_or(now),
                      .min_reached_at = min_reached_at_.value_or(now),
                      .not_before = budget_.not_before()};
  const Decision decision = decide(roster, policy_, now);
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

// A node holds a seat if it waits for the next round or will be back for it. So a spare never takes
// the seat of a node that is only slow to stop its workers.
void Membership::promote_spares() {
  int free_seats = policy_.max_nodes - count(Standing::kWaiting) - count(Standing::kStopping);
  if (free_seats <= 0) return;
  for (const SessionId session : by_arrival(Standing::kSpare)) {
    if (free_seats-- == 0) return;
    members_.at(session).standing = Standing::kWaiting;
  }
}

// Each time is set once and stays, until too few nodes wait for it to mean something. A node that
// joins later does not move it.
void Membership::update_times(Time now) {
  const int waiting = count(Standing::kWaiting);
  if (waiting == 0) gathering_since_.reset();
  if (waiting > 0 && !gathering_since_) gathering_since_ = now;
  if (waiting < policy_.min_nodes) min_reached_at_.reset();
  if (waiting >= policy_.min_nodes && !min_reached_at_) min_reached_at_ = now;
}

void Membership::publish(Time now, Outcome& outcome) {
  std::vector<Entrant> arrivals;
  const auto size = static_cast<std::size_t>(usable_nodes(count(Standing::kWaiting), policy_));
  for (const SessionId session : by_arrival(Standing::kWaiting)) {
    Member& member = members_.at(session);
    if (arrivals.size() == size) {
      member.standing = Standing::kSpare;  // node_unit leaves no seat for it
      continue;
    }
    arrivals.push_back(member.entrant);
    arrivals.back().previous_seat = member.seat;
  }
  const std::vector<Entrant> entrants = order_of_seats(std::move(arrivals));
  Publication publication{make_round(++round_number_, budget_.restarts(), entrants), {}};
  for (int seat = 0; const Entrant& entrant : entrants) {
    Member& member = members_.at(entrant.session);
    member.standing = Standing::kRunning;
    member.seat = seat++;
    publication.sessions.push_back(entrant.session);
  }
  set_budget(entrants, now, outcome);
  outcome.published = std::move(publication);
  phase_ = Phase::kRunning;
  gathering_since_.reset();
  min_reached_at_.reset();
}

// The job has one budget. If the nodes were started with different ones, the smallest holds: no
// node is restarted more often than its user allowed. Window and backoff are those of node rank 0.
void Membership::set_budget(const std::vector<Entrant>& entrants, Time now, Outcome& outcome) {
  const auto [least, most] = std::ranges::minmax_element(
      entrants, {}, [](const Entrant& entrant) { return entrant.spec.max_restarts; });
  const NodeSpec& first = entrants.front().spec;
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
  std::erase_if(members_, [](const auto& entry) { return entry.second.gone; });
  for (auto& [session, member] : members_) {
    if (!member.in_round()) continue;
    member.standing = Standing::kStopping;
    outcome.deliveries.push_back({session, message});
  }
}

// Breaks a running round that has room for spares. A round in which a node has finished is let be:
// the job is about to end.
void Membership::consider_resize(Time now, Outcome& outcome) {
  const int running = count(Standing::kRunning);
  const int spares = count(Standing::kSucceeded) > 0 ? 0 : count(Standing::kSpare);
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

// Too few nodes came in time. The job ends for all that are here, also for those still stopping.
void Membership::give_up(Outcome& outcome) {
  end_text_ =
      fmt::format("{} of {} nodes joined within join_timeout={} s", count(Standing::kWaiting),
                  policy_.min_nodes, seconds(policy_.join_timeout));
  const Error error(ErrorCode::kTimedOut, "rendezvous: " + end_text_);
  phase_ = Phase::kEnded;
  for (auto& [session, member] : members_) {
    if (!member.listens()) continue;
    member.standing = Standing::kDismissed;
    outcome.deliveries.push_back({session, SessionLost{error}});
  }
}

void Membership::end_job(const JobEnded& end, Outcome& outcome) {
  phase_ = Phase::kEnded;
  end_text_ = end_text(end);
  std::erase_if(members_, [](const auto& entry) { return entry.second.gone; });
  for (auto& [session, member] : members_) {
    if (!member.listens()) continue;
    member.standing = Standing::kDismissed;
    outcome.deliveries.push_back({session, end});
  }
}

}  // namespace ddprun::rendezvous
