#include "tests/sim/sim_host.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace ddprun::sim {

using rendezvous::HostMessage;

SimHost::SimHost(VirtualTime& time, const JobPlan& plan)
    : time_(time), plan_(plan), membership_(plan.policy) {}

SimHost::Session* SimHost::find(SessionId session) {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : &found->second;
}

// Of a message of this session. Null: the session is over.
SimHost::Session* SimHost::heard(SessionId session) {
  Session* const known = find(session);
  if (known != nullptr) known->silence.heard();
  return known;
}

void SimHost::opened(SessionId session, Ears ears) {
  Session& opened = sessions_[session];
  opened.ears = std::move(ears);
  const auto lease = rendezvous::lease_for(plan_.keep_alive, static_cast<int>(sessions_.size()));
  opened.silence.granted(plan_.keep_alive, lease);
  opened.ears.lease(milliseconds(0), lease);
}

void SimHost::joined(SessionId session, const rendezvous::NodeSpec& spec) {
  Session* const known = heard(session);
  if (known == nullptr) return;
  known->spec = spec;
  perform(membership_.joined(session, spec, {"10.0.0." + std::to_string(session % 250), ""},
                             time_.now()));
}

void SimHost::failed(SessionId session, std::int64_t round, const rendezvous::Failure& failure) {
  if (heard(session) == nullptr) return;
  perform(membership_.failed(session, round, failure, time_.now()));
  check_stale_reports_change_nothing(session);
}

void SimHost::succeeded(SessionId session, std::int64_t round) {
  if (heard(session) == nullptr) return;
  if (round == last_round_) ++succeeded_;
  perform(membership_.succeeded(session, round, time_.now()));
  check_stale_reports_change_nothing(session);
}

void SimHost::left(SessionId session) {
  Session* const known = heard(session);
  if (known == nullptr) return;
  known->left = true;
  perform(membership_.left(session, {.hostname = known->spec.hostname, .message = "left"},
                           time_.now()));
}

void SimHost::beat(SessionId session, milliseconds stamp) {
  Session* const known = heard(session);
  if (known == nullptr) return;
  const auto lease = rendezvous::lease_for(plan_.keep_alive, static_cast<int>(sessions_.size()));
  known->silence.granted(plan_.keep_alive, lease);
  known->ears.lease(stamp, lease);
}

void SimHost::ended(SessionId session) {
  if (find(session) == nullptr) return;
  sessions_.erase(session);
  perform(membership_.session_lost(session, "its connection ended", time_.now()));
}

void SimHost::watch(SessionId session) {
  Session* const known = find(session);
  if (known == nullptr || known->watched) return;
  known->watched = true;
  look_for_silence(session);
}

void SimHost::look_for_silence(SessionId session) {
  time_.after(rendezvous::look_every(plan_.keep_alive), [this, session] {
    Session* const known = find(session);
    if (known == nullptr) return;
    if (!known->silence.looked()) return look_for_silence(session);
    known->ears.closed();
    ended(session);
  });
}

// ---- what the membership decides ----

void SimHost::perform(const rendezvous::Outcome& outcome) {
  if (outcome.published) publish(*outcome.published);
  for (const rendezvous::Delivery& delivery : outcome.deliveries) {
    Session* const to = find(delivery.to);
    if (to == nullptr) continue;
    EXPECT_FALSE(to->told_last) << "a message after the last";
    EXPECT_FALSE(to->left) << "a message to a node that left";
    if (const auto* broken = std::get_if<rendezvous::RoundBroken>(&delivery.message)) {
      check_resize(*broken);
    } else {
      to->told_last = true;
      check_end(delivery.message);
    }
    to->ears.message(delivery.message);
  }
  EXPECT_LE(membership_.restart_count(), plan_.budget) << "more restarts than the budget has";
  check_room();
  check_waits();
  look_again();
}

// Nodes that could be in a round: they are here and have not left.
int SimHost::could_be_in() const {
  return static_cast<int>(std::ranges::count_if(sessions_, [](const auto& entry) {
    return !entry.second.left && !entry.second.spec.node_id.empty();
  }));
}

// A job that has budget and enough nodes does not end in failure.
void SimHost::check_end(const HostMessage& message) {
  if (const auto* ended = std::get_if<rendezvous::JobEnded>(&message)) {
    if (ended->succeeded) {
      EXPECT_EQ(succeeded_, std::ssize(seated_)) << "the job succeeded before all its nodes";
      return;
    }
    const bool spent = membership_.restart_count() == plan_.budget;
    EXPECT_TRUE(spent || could_be_in() < plan_.policy.min_nodes)
        << "the job ended with budget and nodes left: " << ended->cause.message;
  }
  const auto* lost = std::get_if<rendezvous::SessionLost>(&message);
  if (lost != nullptr && lost->error.code() == ErrorCode::kTimedOut) {
    EXPECT_LT(could_be_in(), plan_.policy.min_nodes) << "gave up although enough nodes are here";
  }
}

void SimHost::publish(const rendezvous::Publication& published) {
  const rendezvous::Round& round = published.round;
  const rendezvous::RoundPolicy& policy = plan_.policy;
  EXPECT_EQ(round.number, last_round_ + 1);
  // Between the two are rounds whose end nobody was there to be told of.
  EXPECT_LE(std::ssize(failed_), round.restart_count) << "a round failed, no restart was spent";
  EXPECT_LE(round.restart_count, round.number - 1 - std::ssize(resized_)) << "a resize spent one";
  last_round_ = round.number;
  running_ = true;
  succeeded_ = 0;
  check_seats_are_kept(published.sessions);
  EXPECT_GE(round.node_count, policy.min_nodes);
  EXPECT_LE(round.node_count, policy.max_nodes);
  EXPECT_EQ(round.node_count % policy.node_unit, 0);
  EXPECT_EQ(std::ssize(published.seats), round.node_count);
  EXPECT_EQ(std::set<SessionId>(published.sessions.begin(), published.sessions.end()).size(),
            published.seats.size());
  int next_rank = 0;
  for (std::size_t i = 0; i < published.seats.size(); ++i) {
    Session* const node = find(published.sessions[i]);
    ASSERT_NE(node, nullptr) << "a seat for a node that is not here";
    EXPECT_EQ(published.seats[i].node_rank, static_cast<int>(i));
    EXPECT_EQ(published.seats[i].first_rank, next_rank);
    next_rank += node->spec.local_world_size;
  }
  EXPECT_EQ(round.world_size, next_rank);
  EXPECT_EQ(std::to_string(round.master_port), find(published.sessions.front())->spec.node_id);
  for (std::size_t i = 0; i < published.seats.size(); ++i)
    find(published.sessions[i])
        ->ears.message(rendezvous::RoundPublished{round, published.seats[i]});
  check_stale_reports_change_nothing(published.sessions.back());
}

void SimHost::check_resize(const rendezvous::RoundBroken& broken) {
  running_ = false;
  if (!broken.is_resize) {
    failed_.insert(broken.round);
    return;
  }
  const bool is_first_word = resized_.insert(broken.round).second;
  if (!is_first_word || broken.cause.message == "left") return;
  EXPECT_GE(time_.now() - grown_at_, plan_.policy.resize_interval) << "it grows too often";
  grown_at_ = time_.now();
}

// A round whose last node left or was lost is over, too, although nobody was there to be told.
bool SimHost::round_runs() const {
  return running_ && std::ranges::any_of(seated_, [this](SessionId session) {
           const auto node = sessions_.find(session);
           return node != sessions_.end() && !node->second.left;
         });
}

// A node that waits although the running round has room for it is taken in.
void SimHost::check_room() {
  const auto seats = static_cast<int>(seated_.size());
  const auto waiting = std::ranges::count_if(sessions_, [this](const auto& entry) {
    const auto& [session, node] = entry;
    return !node.left && !node.told_last && !node.spec.node_id.empty() &&
           std::ranges::count(seated_, session) == 0;
  });
  const int usable = rendezvous::usable_nodes(seats + static_cast<int>(waiting), plan_.policy);
  if (!round_runs() || succeeded_ > 0 || usable <= seats) return room_since_.reset();
  if (room_since_) return;
  room_since_ = time_.now();
  const auto most = plan_.policy.resize_wait + plan_.policy.resize_interval + milliseconds(1);
  // Looked at by itself: an event would wake the membership up.
  time_.at(
      time_.now() + std::chrono::duration_cast<milliseconds>(most),
      [this, since = room_since_] { EXPECT_NE(room_since_, since) << "a newcomer was forgotten"; });
}

// No more nodes wait than there are seats; a round with all the nodes that it can have waits for
// nobody; and every wait has an end.
void SimHost::check_waits() const {
  using rendezvous::Await;
  const auto gathering = membership_.gathering(time_.now());
  if (!gathering || gathering->have == 0) return;
  EXPECT_LE(gathering->have, plan_.policy.max_nodes) << "a spare waits as if it had a seat";
  const bool is_last_call = gathering->awaits == Await::kLastCall;
  EXPECT_FALSE(is_last_call && gathering->have == plan_.policy.max_nodes) << "a full round waits";
  if (is_last_call || gathering->awaits == Await::kNodes) {
    EXPECT_NE(membership_.look_again_at(), Time::max()) << "a wait without an end";
  }
}

// No spare gets the seat of a node that only takes long to come back.
void SimHost::check_seats_are_kept(const std::vector<SessionId>& sessions) {
  for (const SessionId session : seated_) {
    const Session* const node = find(session);
    if (plan_.policy.node_unit > 1 || node == nullptr || node->left) continue;
    EXPECT_EQ(std::ranges::count(sessions, session), 1) << "lost its seat: " << session;
  }
  for (std::size_t seat = 0; seat < std::min(seated_.size(), sessions.size()); ++seat) {
    const bool is_in = std::ranges::count(sessions, seated_[seat]) > 0;
    if (is_in) {
      EXPECT_EQ(sessions[seat], seated_[seat]) << "has another rank";
    }
  }
  seated_ = sessions;
}

// Reports about rounds that are over, and about rounds to come, change nothing.
void SimHost::check_stale_reports_change_nothing(SessionId session) {
  const int restarts = membership_.restart_count();
  const Time again = membership_.look_again_at();
  for (const std::int64_t round : {last_round_ - 1, last_round_ + 1}) {
    EXPECT_TRUE(membership_.failed(session, round, {}, time_.now()).deliveries.empty());
    EXPECT_TRUE(membership_.succeeded(session, round, time_.now()).deliveries.empty());
  }
  EXPECT_EQ(membership_.restart_count(), restarts);
  EXPECT_EQ(membership_.look_again_at(), again);
}

void SimHost::look_again() {
  const Time time = membership_.look_again_at();
  if (time == Time::max() || time == timer_at_) return;
  timer_at_ = time;
  EXPECT_GT(time, time_.now()) << "a timer in the past";
  time_.at(time, [this] {
    timer_at_ = Time{};
    perform(membership_.tick(time_.now()));
  });
}

}  // namespace ddprun::sim
