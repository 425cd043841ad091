// The messages that a node repeats after its connection or its leader was lost.
#include "rendezvous/core/session_memory.h"

#include <gtest/gtest.h>

#include "tests/rendezvous/support.h"

namespace ddprun::rendezvous {
namespace {

// Keeps what is said to it, one word for each call.
class Ear final : public Session {
 public:
  void join(const NodeSpec& /*node*/) override { said.emplace_back("join"); }
  void resume(const ResumeRequest& node) override {
    said.emplace_back("resume");
    resumed = node;
  }
  void report_failure(std::int64_t round, const Failure& failure) override {
    said.push_back("failed " + std::to_string(round) + " " + failure.message);
  }
  void report_success(std::int64_t /*round*/) override { said.emplace_back("succeeded"); }
  void leave(const Failure& reason) override { said.push_back("leave " + reason.message); }
  void gone() override {}
  std::optional<WaitStatus> wait_status() const override { return {}; }

  std::vector<std::string> said;
  ResumeRequest resumed;
};

using Said = std::vector<std::string>;

class SessionMemoryTest : public testing::Test {
 protected:
  void publish(std::int64_t round) {
    memory.on_message(
        RoundPublished{.round = {.number = round, .node_count = 3}, .seat = {.node_rank = 2}});
  }
  Ear& next() {
    ear_.said.clear();
    memory.replay_to(ear_);
    return ear_;
  }

  SessionMemory memory;

 private:
  Ear ear_;
};

TEST_F(SessionMemoryTest, HasNothingToSayBeforeTheFirstJoin) { EXPECT_EQ(next().said, Said{}); }

TEST_F(SessionMemoryTest, AsksAgainForASeat) {
  memory.joined(make_node("a"));
  EXPECT_FALSE(memory.is_in_round());
  const Ear& ear = next();
  EXPECT_EQ(ear.said, Said{"resume"});
  EXPECT_EQ(ear.resumed, (ResumeRequest{.spec = make_node("a"), .connection = 1}));
}

TEST_F(SessionMemoryTest, SaysTheRoundAndTheSeatThatItIsIn) {
  memory.joined(make_node("a"));
  publish(4);
  EXPECT_TRUE(memory.is_round_whole());
  EXPECT_EQ(next().resumed, (ResumeRequest{.spec = make_node("a"),
                                           .connection = 1,
                                           .round = 4,
                                           .seat = 2,
                                           .node_count = 3,
                                           .state = NodeState::kRunning}));
  memory.succeeded(3);
  EXPECT_EQ(next().resumed.state, NodeState::kRunning);
  memory.succeeded(4);
  EXPECT_EQ(next().resumed.state, NodeState::kSucceeded);
  EXPECT_EQ(next().said, Said{"resume"});
}

TEST_F(SessionMemoryTest, RepeatsAFailureThatEndsTheJobAlsoOnceTheRoundIsBroken) {
  memory.joined(make_node("a"));
  publish(4);
  memory.on_message(RoundBroken{.round = 4, .cause = {}});
  memory.failed(4, {.message = "late"});
  EXPECT_EQ(next().said, Said{"resume"});
  memory.failed(4, {.message = "enough", .ends_job = true});
  EXPECT_EQ(next().said, (Said{"resume", "failed 4 enough"}));
  memory.on_message(RoundBroken{.round = 4, .cause = {}});
  EXPECT_EQ(next().said, (Said{"resume", "failed 4 enough"}));
  publish(5);
  EXPECT_EQ(next().said, Said{"resume"});
}

// These rounds were under way over the connection of before.
TEST_F(SessionMemoryTest, ARoundThatIsNotNewerChangesNothing) {
  memory.joined(make_node("a"));
  publish(4);
  memory.succeeded(4);
  for (const std::int64_t round : {3, 4})
    EXPECT_FALSE(memory.on_message(RoundPublished{.round = {.number = round, .node_count = 1}}));
  EXPECT_EQ(next().resumed, (ResumeRequest{.spec = make_node("a"),
                                           .connection = 1,
                                           .round = 4,
                                           .seat = 2,
                                           .node_count = 3,
                                           .state = NodeState::kSucceeded}));
  EXPECT_TRUE(memory.on_message(RoundPublished{.round = {.number = 5, .node_count = 1}}));
}

TEST_F(SessionMemoryTest, SaysAFailureAgainUntilItIsAnswered) {
  memory.joined(make_node("a"));
  publish(4);
  memory.failed(3, make_failure("old"));
  EXPECT_EQ(next().said, Said{"resume"});
  memory.failed(4, make_failure("new"));
  EXPECT_EQ(next().said, (Said{"resume", "failed 4 new"}));
  EXPECT_EQ(next().resumed.state, NodeState::kRunning);
  memory.on_message(RoundBroken{.round = 4, .cause = make_failure("why"), .is_resize = true});
  EXPECT_EQ(next().said, Said{"resume"});
}

TEST_F(SessionMemoryTest, SaysWhyTheRoundBrokeAlsoWhenItHasJoined) {
  memory.joined(make_node("a"));
  publish(4);
  memory.on_message(RoundBroken{.round = 3, .cause = make_failure("old")});
  EXPECT_TRUE(memory.is_round_whole());
  memory.on_message(RoundBroken{.round = 4, .cause = make_failure("why"), .is_resize = true});
  EXPECT_TRUE(memory.is_in_round());
  EXPECT_FALSE(memory.is_round_whole());
  EXPECT_EQ(next().resumed.state, NodeState::kStopping);
  memory.joined(make_node("a"));
  const ResumeRequest resumed = next().resumed;
  EXPECT_EQ(resumed.state, NodeState::kJoining);
  EXPECT_EQ(resumed.round, 4);
  EXPECT_EQ(resumed.cause, make_failure("why"));
  EXPECT_TRUE(resumed.is_resize);
}

TEST_F(SessionMemoryTest, SaysThatItLeaves) {
  memory.joined(make_node("a"));
  publish(1);
  memory.left(make_failure("signal"));
  EXPECT_EQ(next().said, (Said{"resume", "leave signal"}));
}

}  // namespace
}  // namespace ddprun::rendezvous
