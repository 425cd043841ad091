// The node that an operator means, and what is refused. The consequences are in scripts/drain*.txt
// and its neighbours.
#include "rendezvous/control/operator_verbs.h"

#include <gtest/gtest.h>

namespace ddprun::rendezvous {
namespace {

const Time kNow = Time{} + std::chrono::hours(1);

NodeSpec node(const std::string& id, const std::string& hostname, int rank = -1) {
  return {.node_id = id,
          .hostname = hostname,
          .node_rank = rank,
          .rank_is_preferred = rank < 0,
          .store_port = 1};
}

class OperatorVerbs : public testing::Test {
 protected:
  void join(SessionId session, const NodeSpec& spec) {
    membership.joined(session, spec, {"10.0.0.1", ""}, kNow);
  }
  std::string refusal(const std::string& name) {
    const auto found = find_node(membership, name);
    return found ? "found" : found.error().message();
  }

  Membership membership{{.min_nodes = 2, .max_nodes = 3}};
};

TEST_F(OperatorVerbs, ANodeIsFoundByIdRankAndHostname) {
  join(1, node("a-1", "one"));
  join(2, node("b-1", "two"));
  join(3, node("c-1", "two"));
  EXPECT_EQ(find_node(membership, "c-1").value(), 3U);
  EXPECT_EQ(find_node(membership, "0").value(), 1U);
  EXPECT_EQ(find_node(membership, "one").value(), 1U);
  EXPECT_EQ(refusal("two"), "2 nodes are two: name one by its node rank or id");
  EXPECT_EQ(refusal("3"), "no node of the job has the node rank, hostname or id 3");
}

TEST_F(OperatorVerbs, ASparesOldRankIsSomebodyElses) {
  join(1, node("a", "one"));
  join(2, node("b", "two"));
  join(3, node("c", "three"));
  ASSERT_TRUE(resize(membership, 2, 2, kNow).has_value());
  for (const SessionId session : {1, 2, 3})
    join(session, node(std::string(1, static_cast<char>('a' + session - 1)), "x"));
  EXPECT_EQ(membership.round_number(), 2);
  EXPECT_EQ(refusal("2"), "no node of the job has the node rank, hostname or id 2");
  EXPECT_EQ(find_node(membership, "c").value(), 3U);
}

TEST_F(OperatorVerbs, ANodeWhoseWorkIsDoneIsNotDrained) {
  for (const SessionId session : {1, 2, 3}) join(session, node(std::to_string(session * 10), "x"));
  membership.succeeded(1, 1, kNow);
  const auto drained = drain(membership, 1, {}, kNow);
  ASSERT_FALSE(drained.has_value());
  EXPECT_EQ(drained.error().code(), ErrorCode::kRejected);
  EXPECT_EQ(drained.error().message(), "all workers of node 0 (x) have succeeded");
}

// Its nodes are about to come back: who remains, and how many run, is not known yet. It can be
// stopped.
TEST_F(OperatorVerbs, AJobThatRecoversCanOnlyBeStopped) {
  Membership recovering({.min_nodes = 1, .max_nodes = 3}, {.round = 4, .others = 2, .leader = "x"});
  recovering.opened(1);
  recovering.resumed(1,
                     {.spec = node("a", "one"),
                      .round = 4,
                      .seat = 0,
                      .node_count = 2,
                      .state = NodeState::kRunning},
                     {"10.0.0.1", ""}, kNow);
  ASSERT_TRUE(recovering.recovers());
  const std::string text =
      "a new leader waits for the nodes of the round: say it again in a few seconds";
  EXPECT_EQ(drain(recovering, 1, {}, kNow).error().message(), text);
  EXPECT_EQ(resize(recovering, 1, 1, kNow).error().message(), text);
  ASSERT_TRUE(stop(recovering, "ann", kNow).has_value());
  EXPECT_TRUE(recovering.ended());
  const Outcome late = recovering.resumed(2,
                                          {.spec = node("b", "two"),
                                           .round = 4,
                                           .seat = 1,
                                           .node_count = 2,
                                           .state = NodeState::kRunning},
                                          {"10.0.0.2", ""}, kNow);
  ASSERT_EQ(late.deliveries.size(), 1U);
  const auto* const ended = std::get_if<JobEnded>(&late.deliveries.front().message);
  ASSERT_NE(ended, nullptr);
  EXPECT_TRUE(ended->is_stopped);
}

TEST_F(OperatorVerbs, GivenRanksAreFixed) {
  join(1, node("a", "one", 1));
  const auto resized = resize(membership, 1, 2, kNow);
  ASSERT_FALSE(resized.has_value());
  EXPECT_EQ(resized.error().message(), "the nodes of a job with the static backend are fixed");
}

TEST(OperatorVerbsOfUnits, BothNumbersAreMultiples) {
  Membership membership({.min_nodes = 2, .max_nodes = 4, .settings = {.node_unit = 2}});
  EXPECT_FALSE(resize(membership, 2, 3, kNow).has_value());
  EXPECT_TRUE(resize(membership, 4, 6, kNow).has_value());
  EXPECT_EQ(membership.policy().max_nodes, 6);
}

}  // namespace
}  // namespace ddprun::rendezvous
