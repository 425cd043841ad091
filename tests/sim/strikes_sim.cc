#include "tests/sim/strikes_sim.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace ddprun::sim {

using rendezvous::NodeFault;
using std::chrono::hours;
using std::chrono::seconds;

namespace {

constexpr hours kHalfLife{1};
constexpr int kThreshold = 2;

}  // namespace

StrikesSim::StrikesSim(unsigned seed) : random_(seed) {
  policy_.min_nodes = 1 + draw(3);
  policy_.max_nodes = policy_.min_nodes + draw(3);
  nodes_.resize(static_cast<std::size_t>(policy_.max_nodes + draw(3)));
  membership_.emplace(policy_);
}

void StrikesSim::run() {
  for (int node = 0; node < std::ssize(nodes_); ++node) join(node);
  pass(seconds(60));
  for (int step = 0; step < 40 && !testing::Test::HasFailure(); ++step) {
    if (draw(3) == 0) pass(seconds(draw(draw(4) == 0 ? 20000 : 300)));
    const int node = some_seated_node();
    if (node >= 0) fail(node, draw(3) > 0);
    check_counts();
  }
  pass(hours(6));
  check_counts();
  const int most = std::min(policy_.max_nodes, static_cast<int>(nodes_.size()));
  EXPECT_EQ(std::ranges::count_if(nodes_, &Node::is_seated), most) << "a node is still passed over";
}

// Failures of few nodes, so that they sit out. -1: no round runs.
int StrikesSim::some_seated_node() {
  const int first = draw(2);
  for (int node = first; node < std::ssize(nodes_); ++node)
    if (nodes_[static_cast<std::size_t>(node)].is_seated) return node;
  return -1;
}

void StrikesSim::join(int node) {
  Node& one = nodes_[static_cast<std::size_t>(node)];
  if (one.session == 0) one.session = ++last_session_;
  hear(membership_->joined(one.session,
                           {.node_id = fmt::format("n{}", node),
                            .hostname = fmt::format("host-{}", node),
                            .store_port = 1,
                            .max_restarts = 1000,
                            .strike_rules = {.most = kThreshold, .half_life = kHalfLife}},
                           {"127.0.0.1"}, now_));
}

void StrikesSim::join_all(std::vector<int> nodes) {
  std::shuffle(nodes.begin(), nodes.end(), random_);
  for (const int node : nodes) {
    to_join_.erase(node);
    join(node);
  }
}

void StrikesSim::pass(seconds length) {
  const Time end = now_ + length;
  while (membership_->look_again_at() <= end) {
    now_ = std::max(now_, membership_->look_again_at());
    hear(membership_->tick(now_));
    join_all({to_join_.begin(), to_join_.end()});
  }
  now_ = end;
}

// A node of its own fault is lost, and comes back at once; or a worker of it says so.
void StrikesSim::fail(int node, bool is_of_the_node) {
  Node& one = nodes_[static_cast<std::size_t>(node)];
  if (is_of_the_node) strike(one);
  if (is_of_the_node && draw(2) == 0) {
    one.is_seated = one.was_seated = false;
    hear(membership_->session_lost(std::exchange(one.session, 0), "it was cut off", now_));
    to_join_.insert(node);
  } else {
    hear(membership_->failed(one.session, membership_->round_number(),
                             {.hostname = fmt::format("host-{}", node),
                              .rank = node,
                              .exit_code = 1,
                              .words = fmt::format("Error{}: it", node),
                              .fault = is_of_the_node ? NodeFault::kExitCode : NodeFault::kNone},
                             now_));
  }
  join_all({to_join_.begin(), to_join_.end()});
}

double StrikesSim::count(const Node& node) const {
  double sum = 0;
  for (const Time at : node.strikes) {
    double one = 1;
    for (Time halved = at + kHalfLife; halved <= now_; halved += kHalfLife) one /= 2;
    sum += one > 0.1 ? one : 0;
  }
  return sum;
}

void StrikesSim::strike(Node& node) const {
  if (count(node) == 0 && node.ends <= now_) node.pauses = 0;
  if (node.strikes.size() == rendezvous::kMostStrikes) node.strikes.erase(node.strikes.begin());
  node.strikes.push_back(now_);
  if (count(node) < kThreshold) return;
  seconds pause{60};
  for (int i = 0; i < node.pauses; ++i) pause = std::min<seconds>(pause * 2, hours(1));
  ++node.pauses;
  node.ends = now_ + pause;
}

void StrikesSim::hear(const rendezvous::Outcome& outcome) {
  EXPECT_FALSE(outcome.ended) << "the job ended: " << outcome.ended->cause.message;
  if (outcome.broken) {
    for (int node = 0; node < std::ssize(nodes_); ++node) {
      Node& one = nodes_[static_cast<std::size_t>(node)];
      if (std::exchange(one.is_seated, false)) to_join_.insert(node);
    }
  }
  if (outcome.published) check_round(*outcome.published);
}

void StrikesSim::check_round(const rendezvous::Publication& published) {
  ++rounds_;
  int can_play = 0;
  int sit_out = 0;
  bool is_clean_left = false;
  bool is_struck_new = false;
  for (Node& node : nodes_) {
    const bool is_here = node.session != 0;
    const bool is_out = node.ends > now_;
    node.is_seated = std::ranges::count(published.sessions, node.session) > 0 && is_here;
    can_play += is_here && !is_out ? 1 : 0;
    sit_out += node.is_seated && is_out ? 1 : 0;
    const bool is_clean = count(node) == 0;
    is_clean_left = is_clean_left || (is_here && is_clean && !node.is_seated);
    is_struck_new = is_struck_new || (node.is_seated && !node.was_seated && !is_clean);
  }
  const int seated = static_cast<int>(std::ranges::count_if(nodes_, &Node::is_seated));
  EXPECT_EQ(seated, std::ssize(published.sessions)) << "a seat for nobody";
  EXPECT_GE(seated, policy_.min_nodes) << "fewer nodes than asked for";
  EXPECT_LE(seated, policy_.max_nodes) << "more nodes than seats";
  EXPECT_EQ(sit_out, std::max(policy_.min_nodes - can_play, 0)) << "a node plays that sits out";
  EXPECT_FALSE(is_clean_left && is_struck_new && sit_out == 0) << "a struck node goes first";
  for (Node& node : nodes_) node.was_seated = node.is_seated;
}

void StrikesSim::check_counts() const {
  membership_->members().for_each([this](const rendezvous::Member& member) {
    const auto node = std::ranges::find(nodes_, member.session(), &Node::session);
    ASSERT_NE(node, nodes_.end());
    EXPECT_EQ(membership_->strikes_of(member, now_), count(*node)) << "another count of strikes";
  });
}

}  // namespace ddprun::sim
