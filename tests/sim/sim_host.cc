#include "tests/sim/sim_host.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace ddprun::sim {

SimHost::SimHost(VirtualTime& time, const JobPlan& plan, rendezvous::JobRecord record, Clock clock,
                 Callbacks callbacks)
    : time_(time),
      plan_(plan),
      clock_(clock),
      callbacks_(std::move(callbacks)),
      membership_(plan.policy, record),
      began_with_a_round_(record.round > 0),
      last_round_(record.round) {}

void SimHost::arrive(std::function<void()> act) {
  const auto unless_over = [this, act = std::move(act)] {
    if (!over_) act();
  };
  callbacks_.when_awake ? callbacks_.when_awake(unless_over) : unless_over();
}

void SimHost::end(bool is_told) {
  over_ = true;
  for (auto& [id, session] : sessions_)
    if (is_told && !session.is_cut) session.ears.closed();
}

SimHost::Session* SimHost::find(SessionId session) {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : &found->second;
}

// Notes a message of this session. Null if the session is over.
SimHost::Session* SimHost::hear(SessionId session) {
  Session* const known = find(session);
  if (known != nullptr) known->silence.broken();
  return known;
}

SimHost::Session* SimHost::holder(SessionId member) {
  for (auto& [id, session] : sessions_)
    if (session.member == member) return &session;
  return nullptr;
}

void SimHost::opened(SessionId session, Ears ears) {
  Session& opened = sessions_[session];
  opened.ears = std::move(ears);
  opened.member = session;
  if (early_watches_.erase(session) > 0) watch(session);
  membership_.opened(session);
  const auto lease = rendezvous::lease_for(plan_.keep_alive, static_cast<int>(sessions_.size()));
  if (callbacks_.may_grant && !callbacks_.may_grant()) return;
  opened.silence.granted(plan_.keep_alive, lease);
  opened.ears.lease(milliseconds(0), lease);
}

void SimHost::joined(SessionId session, const rendezvous::NodeSpec& spec) {
  Session* const known = hear(session);
  if (known == nullptr) return;
  known->spec = spec;
  known->has_workers = false;
  perform(membership_.joined(known->member, spec, {"10.0.0." + std::to_string(session % 250), ""},
                             now()));
}

// As ConnectedNodes.
bool SimHost::is_overtaken(SessionId session, const rendezvous::ResumeRequest& node) const {
  return std::ranges::any_of(sessions_, [&](const auto& entry) {
    const Session& other = entry.second;
    return entry.first != session && other.spec.node_id == node.spec.node_id && !other.got_last &&
           node.connection < other.connection;
  });
}

void SimHost::move(SessionId to, const rendezvous::ResumeRequest& node) {
  const auto old = std::ranges::find_if(sessions_, [&](const auto& entry) {
    return entry.first != to && entry.second.spec.node_id == node.spec.node_id &&
           !entry.second.got_last;
  });
  if (old == sessions_.end()) return;
  Session& fresh = sessions_.at(to);
  const SessionId unused = std::exchange(fresh.member, old->second.member);
  fresh.left = old->second.left;
  fresh.silence.follows(old->second.silence);
  if (!old->second.is_cut) old->second.ears.closed();
  sessions_.erase(old);
  perform(membership_.session_lost(unused, "", now()));
}

void SimHost::resumed(SessionId session, const rendezvous::ResumeRequest& node) {
  if (hear(session) == nullptr) return;
  if (is_overtaken(session, node)) {
    find(session)->ears.closed();
    return ended(session);
  }
  move(session, node);
  Session& known = sessions_.at(session);
  known.spec = node.spec;
  known.connection = node.connection;
  known.has_workers = node.state != rendezvous::NodeState::kJoining;
  if (node.state == rendezvous::NodeState::kSucceeded && node.round == last_round_)
    done_.insert(known.member);
  for (rendezvous::Outcome& unsent : unsent_) unsent.withheld_from.push_back(known.member);
  // A node whose time is over in this very moment breaks by that, whatever comes first.
  const bool recovers = membership_.recovers() && now() < membership_.look_again_at();
  auto outcome = membership_.resumed(known.member, node,
                                     {"10.0.0." + std::to_string(known.member % 250), ""}, now());
  // A node that comes back from a round that is over harms nobody who is in the round of now.
  EXPECT_FALSE(recovers && outcome.broken && node.round < last_round_)
      << "a node of round " << node.round << " broke round " << last_round_;
  for (const rendezvous::Delivery& delivery : outcome.deliveries) {
    const auto* const broken = std::get_if<rendezvous::RoundBroken>(&delivery.message);
    EXPECT_FALSE(recovers && delivery.to == known.member && broken != nullptr &&
                 node.round == last_round_ &&
                 broken->cause.message.starts_with("the leader knows of no seat"))
        << "a node lost its seat in round " << node.round << " to another";
  }
  perform(std::move(outcome));
  check_seat_is_given_once(node);
}

void SimHost::broke(SessionId session) {
  Session* const known = find(session);
  if (known == nullptr) return;
  // One that never said who it is cannot come back.
  if (known->spec.node_id.empty()) return ended(session);
  known->is_cut = true;
  watch(session);
}

void SimHost::failed(SessionId session, std::int64_t round, const rendezvous::Failure& failure) {
  Session* const known = hear(session);
  if (known == nullptr) return;
  const SessionId member = known->member;
  perform(membership_.failed(member, round, failure, now()));
  check_stale_reports_change_nothing(member);
}

void SimHost::succeeded(SessionId session, std::int64_t round) {
  Session* const known = hear(session);
  if (known == nullptr) return;
  const SessionId member = known->member;
  if (round == last_round_) done_.insert(member);
  perform(membership_.succeeded(member, round, now()));
  check_stale_reports_change_nothing(member);
}

void SimHost::left(SessionId session) {
  Session* const known = hear(session);
  if (known == nullptr) return;
  known->left = true;
  perform(membership_.left(known->member, {.hostname = known->spec.hostname, .message = "left"},
                           now()));
}

void SimHost::heartbeat(SessionId session, milliseconds stamp) {
  Session* const known = hear(session);
  if (known == nullptr) return;
  const auto lease = rendezvous::lease_for(plan_.keep_alive, static_cast<int>(sessions_.size()));
  if (callbacks_.may_grant && !callbacks_.may_grant()) return;
  known->silence.granted(plan_.keep_alive, lease);
  known->ears.lease(stamp, lease);
}

void SimHost::ended(SessionId session) {
  const Session* const known = find(session);
  if (known == nullptr) return;
  const SessionId member = known->member;
  sessions_.erase(session);
  perform(membership_.session_lost(member, "its connection ended", now()));
}

void SimHost::watch(SessionId session) {
  Session* const known = find(session);
  if (known == nullptr) early_watches_.insert(session);
  if (known == nullptr || known->watched) return;
  known->watched = true;
  look_for_silence(session);
}

void SimHost::look_for_silence(SessionId session) {
  const Time next = clock_.global(now() + rendezvous::look_every(plan_.keep_alive));
  time_.at(next, [this, session] {
    arrive([this, session] {
      Session* const known = find(session);
      if (known == nullptr) return;
      if (!known->silence.looked()) return look_for_silence(session);
      if (!known->is_cut) known->ears.closed();
      ended(session);
    });
  });
}

// ---- what the membership decides ----

// As Host.
void SimHost::perform(rendezvous::Outcome outcome) {
  if (callbacks_.may_grant && !callbacks_.may_grant()) decides_ = false;
  if (over_ || !decides_) return;
  // The room of a round that is over counts no more. Nobody may be told yet, if etcd is slow.
  if (outcome.broken || outcome.ended) room_since_.reset();
  check_growth(outcome);
  check_failure(outcome);
  // A node may still leave while its message waits for etcd; it does not listen then.
  for (const rendezvous::Delivery& delivery : outcome.deliveries) {
    const Session* const to = holder(delivery.to);
    EXPECT_FALSE(to != nullptr && to->left) << "a message to a node that left";
  }
  look_again();
  const bool waits = !unsent_.empty();
  if (!waits && !is_recorded(outcome)) return tell(outcome);
  unsent_.push_back(std::move(outcome));
  if (!waits) record(unsent_.front());
}

bool SimHost::is_recorded(const rendezvous::Outcome& outcome) const {
  return (outcome.published && callbacks_.record_round) ||
         (outcome.ended && callbacks_.record_end && membership_.round_number() > 0);
}

void SimHost::record(const rendezvous::Outcome& outcome) {
  if (!outcome.published)
    return callbacks_.record_end(outcome.ended->succeeded, [this] { recorded(); });
  const rendezvous::Publication& published = *outcome.published;
  callbacks_.record_round({.round = published.round.number,
                           .restarts = published.round.restart_count,
                           .rules = membership_.restart_rules(),
                           .others = published.round.node_count},
                          [this] { recorded(); });
}

void SimHost::recorded() {
  if (over_ || !decides_ || unsent_.empty()) return;
  do {
    tell(unsent_.front());
    unsent_.pop_front();
  } while (!unsent_.empty() && !is_recorded(unsent_.front()));
  if (!unsent_.empty()) record(unsent_.front());
}

void SimHost::tell(const rendezvous::Outcome& outcome) {
  if (outcome.published) publish(outcome);
  for (const rendezvous::Delivery& delivery : outcome.deliveries) {
    Session* const to = holder(delivery.to);
    if (to == nullptr) continue;
    EXPECT_FALSE(to->got_last) << "a message after the last";
    if (const auto* broken = std::get_if<rendezvous::RoundBroken>(&delivery.message)) {
      // A node that comes back may hear of a round of before.
      if (outcome.broken && broken->round == outcome.broken->round) check_resize(*broken);
    } else if (!std::holds_alternative<rendezvous::RoundPublished>(delivery.message)) {
      to->got_last = true;
      check_end(delivery.message);
    }
    if (!to->is_cut && outcome.hears(delivery.to, delivery.message))
      to->ears.message(delivery.message);
  }
  if (membership_.ended() && !std::exchange(is_end_sent_, true) && callbacks_.ended)
    callbacks_.ended(succeeded_);
  EXPECT_LE(membership_.restart_count(), plan_.budget) << "more restarts than the budget has";
  check_room();
  check_waits();
}

void SimHost::publish(const rendezvous::Outcome& outcome) {
  const rendezvous::Publication& published = *outcome.published;
  const rendezvous::Round& round = published.round;
  const rendezvous::RoundPolicy& policy = plan_.policy;
  EXPECT_EQ(round.number, last_round_ + 1);
  if (callbacks_.tells) callbacks_.tells(round.number);
  // Between the two are rounds whose end nobody was there to be told of.
  EXPECT_LE(std::ssize(failed_), round.restart_count) << "a round failed, no restart was spent";
  EXPECT_LE(round.restart_count, round.number - 1 - std::ssize(resized_)) << "a resize spent one";
  last_round_ = round.number;
  running_ = true;
  done_.clear();
  check_seats_are_kept(published.sessions);
  EXPECT_GE(round.node_count, policy.min_nodes);
  EXPECT_LE(round.node_count, policy.max_nodes);
  EXPECT_EQ(round.node_count % policy.settings.node_unit, 0);
  EXPECT_EQ(std::ssize(published.seats), round.node_count);
  EXPECT_EQ(std::set<SessionId>(published.sessions.begin(), published.sessions.end()).size(),
            published.seats.size());
  check_ranks(published);
  for (std::size_t i = 0; i < published.seats.size(); ++i) {
    Session* const node = holder(published.sessions[i]);
    const rendezvous::RoundPublished message{round, published.seats[i]};
    if (node != nullptr && !node->is_cut && outcome.hears(published.sessions[i], message))
      node->ears.message(message);
  }
  check_stale_reports_change_nothing(published.sessions.back());
}

void SimHost::look_again() {
  const Time time = membership_.look_again_at();
  if (time == Time::max() || time == timer_at_) return;
  timer_at_ = time;
  EXPECT_GT(time, now()) << "a timer in the past";
  time_.at(clock_.global(time), [this] {
    arrive([this] {
      timer_at_ = Time{};
      perform(membership_.tick(now()));
    });
  });
}

}  // namespace ddprun::sim
