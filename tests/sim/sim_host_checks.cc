// The conditions that must hold at every step of a simulated host.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/sim/sim_host.h"

namespace ddprun::sim {

using rendezvous::HostMessage;

// Nodes that could be in a round: they are here and have not left.
int SimHost::could_be_in() const {
  return static_cast<int>(std::ranges::count_if(sessions_, [](const auto& entry) {
    return !entry.second.left && !entry.second.spec.node_id.empty();
  }));
}

// A job that has budget and enough nodes does not end in failure. When it is decided: nodes may
// come until it is told.
void SimHost::check_failure(const rendezvous::Outcome& outcome) const {
  if (!outcome.ended || outcome.ended->succeeded) return;
  const bool spent = membership_.restart_count() == plan_.budget;
  EXPECT_TRUE(spent || could_be_in() < plan_.policy.min_nodes)
      << "the job ended with budget and nodes left: " << outcome.ended->cause.message
      << sessions_text();
}

void SimHost::check_end(const HostMessage& message) {
  if (const auto* ended = std::get_if<rendezvous::JobEnded>(&message)) {
    if (is_end_sent_) return;  // to one that did not hear it
    succeeded_ = ended->succeeded;
    if (ended->succeeded) {
      const bool knows_all = !began_with_a_round_ || !seated_.empty();
      if (knows_all) {
        EXPECT_TRUE(std::ranges::all_of(seated_, [this](SessionId node) {
          return done_.contains(node);
        })) << "the job succeeded before all its nodes";
      }
    }
  }
  const auto* lost = std::get_if<rendezvous::SessionLost>(&message);
  if (lost != nullptr && lost->error.code() == ErrorCode::kTimedOut) {
    EXPECT_LT(could_be_in(), plan_.policy.min_nodes) << "gave up although enough nodes are here";
  }
}

std::string SimHost::sessions_text() const {
  std::string text;
  for (const auto& [id, session] : sessions_)
    text += "\n  session " + std::to_string(id) + " of node " + session.spec.node_id +
            (session.left ? ", left" : "") + (session.is_cut ? ", cut" : "") +
            (session.got_last ? ", told the end" : "");
  return text;
}

// A node may be lost while its round is being recorded.
void SimHost::check_ranks(const rendezvous::Publication& published) {
  int next_rank = 0;
  for (std::size_t i = 0; i < published.seats.size(); ++i) {
    const Session* const node = holder(published.sessions[i]);
    EXPECT_TRUE(node != nullptr || callbacks_.record_round) << "a seat for a node that is not here";
    if (node == nullptr) return;
    EXPECT_EQ(published.seats[i].node_rank, static_cast<int>(i));
    EXPECT_EQ(published.seats[i].first_rank, next_rank);
    next_rank += node->spec.local_world_size;
  }
  EXPECT_EQ(published.round.world_size, next_rank);
  EXPECT_EQ(std::to_string(published.round.master_port),
            holder(published.sessions.front())->spec.node_id);
}

void SimHost::check_resize(const rendezvous::RoundBroken& broken) {
  running_ = false;
  if (!broken.is_resize) {
    failed_.insert(broken.round);
    return;
  }
  resized_.insert(broken.round);
}

// When it is decided: it may be told later. A round of the leader before may have been broken by
// that one.
void SimHost::check_growth(const rendezvous::Outcome& outcome) {
  if (!outcome.broken || !outcome.broken->is_resize || outcome.broken->cause.message == "left")
    return;
  if (seated_.empty()) return;
  EXPECT_GE(now() - grown_at_, plan_.policy.settings.resize_interval) << "it grows too often";
  grown_at_ = now();
}

// A round whose last node left or was lost is over, too, although nobody was there to be told.
bool SimHost::round_runs() const {
  return running_ && std::ranges::any_of(seated_, [this](SessionId session) {
           const auto node = std::ranges::find_if(
               sessions_, [session](const auto& entry) { return entry.second.member == session; });
           return node != sessions_.end() && !node->second.left;
         });
}

// A node that waits although the running round has room for it is taken in.
void SimHost::check_room() {
  const auto seats = static_cast<int>(seated_.size());
  const auto waiting = std::ranges::count_if(sessions_, [this](const auto& entry) {
    const Session& node = entry.second;
    return !node.left && !node.got_last && !node.has_workers && !node.spec.node_id.empty() &&
           std::ranges::count(seated_, node.member) == 0;
  });
  const int usable = rendezvous::usable_nodes(seats + static_cast<int>(waiting), plan_.policy);
  if (!round_runs() || !done_.empty() || usable <= seats) return room_since_.reset();
  if (room_since_) return;
  room_since_ = now();
  const auto most =
      plan_.policy.settings.resize_wait + plan_.policy.settings.resize_interval + milliseconds(1);
  // Looked at by itself: an event would wake the membership up.
  time_.at(clock_.global(now() + most), [this, since = room_since_] {
    arrive([this, since] { EXPECT_NE(room_since_, since) << "a newcomer was forgotten"; });
  });
}

// No more nodes wait than there are seats. A round with all the nodes that it can have waits for
// nobody. Every wait has an end.
void SimHost::check_waits() const {
  using rendezvous::Await;
  const auto wait_status = membership_.wait_status(now());
  if (!wait_status || wait_status->have == 0) return;
  EXPECT_LE(wait_status->have, plan_.policy.max_nodes) << "a spare waits as if it had a seat";
  const bool is_last_call = wait_status->awaits == Await::kLastCall;
  EXPECT_FALSE(is_last_call && wait_status->have == plan_.policy.max_nodes) << "a full round waits";
  if (is_last_call || wait_status->awaits == Await::kNodes) {
    EXPECT_NE(membership_.look_again_at(), Time::max()) << "a wait without an end";
  }
}

// No spare gets the seat of a node that only takes long to come back.
void SimHost::check_seats_are_kept(const std::vector<SessionId>& sessions) {
  for (const SessionId session : seated_) {
    const Session* const node = holder(session);
    if (plan_.policy.settings.node_unit > 1 || node == nullptr || node->left) continue;
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

// Checks that another node that claims the seat is not believed.
void SimHost::check_seat_is_given_once(const rendezvous::ResumeRequest& node) {
  if (over_ || !decides_ || !membership_.recovers() || now() >= membership_.look_again_at()) return;
  const bool is_believed =
      node.round == last_round_ && node.state == rendezvous::NodeState::kRunning;
  if (!is_believed) return;
  constexpr SessionId kUnknown = ~SessionId{0};
  rendezvous::ResumeRequest unknown = node;
  unknown.spec.node_id = "unknown";
  const auto outcome = membership_.resumed(kUnknown, unknown, {"10.0.0.250", ""}, now());
  EXPECT_EQ(outcome.deliveries.size(), 1) << "a seat is given twice";
  membership_.session_lost(kUnknown, "nobody knows it", now());
}

// Reports about rounds that are over, and about rounds to come, change nothing.
void SimHost::check_stale_reports_change_nothing(SessionId session) {
  const int restarts = membership_.restart_count();
  const Time again = membership_.look_again_at();
  if (!unsent_.empty()) return;  // it knows of a round that we do not
  for (const std::int64_t round : {last_round_ - 1, last_round_ + 1}) {
    EXPECT_TRUE(membership_.failed(session, round, {}, now()).deliveries.empty());
    EXPECT_TRUE(membership_.succeeded(session, round, now()).deliveries.empty());
  }
  EXPECT_EQ(membership_.restart_count(), restarts);
  EXPECT_EQ(membership_.look_again_at(), again);
}

}  // namespace ddprun::sim
