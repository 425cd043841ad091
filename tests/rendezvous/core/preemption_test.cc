#include "rendezvous/core/preemption.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <csignal>
#include <limits>
#include <string>

namespace ddprun::rendezvous {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::int64_t kNoticeRound = 1;

// Three nodes, as sessions 1, 2 and 3. Orders are counted from 1.
struct PreemptionTest : testing::Test {
  void begin(int min_nodes = 3, int older_node = 0) {
    membership.emplace(
        RoundPolicy{.min_nodes = min_nodes, .max_nodes = 3, .settings = {.last_call = seconds(9)}});
    for (int node = 1; node <= 3; ++node) {
      NodeSpec spec{.node_id = fmt::format("n{}", node), .hostname = fmt::format("host-{}", node)};
      spec.max_restarts = 3;
      spec.takes_step_orders = node != older_node;
      membership->joined(static_cast<SessionId>(node), spec, {"10.0.0.1"}, now);
    }
    ASSERT_EQ(membership->phase(), Membership::Phase::kRunning);
  }
  std::string notice(SessionId from, seconds deadline = seconds(30),
                     std::int64_t round = kNoticeRound) {
    return print(preemption.noticed(from, {.round = round, .signo = SIGTERM, .deadline = deadline},
                                    *membership, now));
  }
  std::string checkpoint() {
    return print(preemption.wanted({.deadline = seconds(900), .is_end = false}, *membership, now));
  }
  std::string answer(SessionId from, std::int64_t steps, std::int64_t number) {
    return print(
        preemption.answered(from, {.round = kNoticeRound, .number = number, .steps = steps}, now));
  }
  // All three nodes answer; returns what follows.
  std::string all_answer(std::int64_t steps, std::int64_t number) {
    EXPECT_EQ(answer(2, steps, number), "");
    EXPECT_EQ(answer(1, steps - 1, number), "");
    return answer(3, steps - 1, number);
  }
  std::string after(milliseconds time) {
    now += time;
    return print(preemption.tick(now));
  }
  static std::string print(const std::optional<Announcement>& announcement) {
    if (!announcement) return "";
    std::string text = "to";
    for (const SessionId to : announcement->to) text += fmt::format(" {}", to);
    const auto& order = std::get<StepOrder>(announcement->message);
    const std::string number = fmt::format(" #{}", order.number);
    if (order.stage == StepStage::kAsk) return text + ": ask" + number;
    if (order.stage == StepStage::kHold)
      return text + fmt::format(": hold {}", order.step) + number;
    return text + fmt::format(": take {} signal {} within {} s{}", order.step, order.signo,
                              order.deadline.count() / 1000, order.is_end ? "" : ", go on");
  }

  Time now = Time(std::chrono::hours(1));
  std::optional<Membership> membership;
  Preemption preemption;
};

TEST_F(PreemptionTest, AllNodesTakeTheStepThatNoRankHasPassed) {
  begin();
  EXPECT_EQ(notice(2), "to 1 2 3: ask #1");
  EXPECT_EQ(all_answer(100, 1), "to 1 2 3: hold 102 #2");
  now += seconds(2);
  EXPECT_EQ(all_answer(101, 2), "to 1 2 3: take 102 signal 15 within 28 s");
  EXPECT_TRUE(preemption.is_quiet());
  EXPECT_EQ(preemption.look_again_at(), Time::max());
  EXPECT_EQ(notice(1), "") << "the round is told to end";
}

TEST_F(PreemptionTest, AStepThatARankHasPassedIsFollowedByALaterOne) {
  begin();
  notice(2);
  all_answer(100, 1);
  EXPECT_EQ(all_answer(102, 2), "to 1 2 3: hold 106 #3") << "it has passed the end of 102";
  EXPECT_EQ(all_answer(110, 3), "to 1 2 3: hold 118 #4");
  EXPECT_EQ(all_answer(117, 4), "to 1 2 3: take 118 signal 15 within 30 s");
}

TEST_F(PreemptionTest, RanksThatCountNoStepsAreToldAtOnce) {
  begin();
  notice(1);
  EXPECT_EQ(answer(1, 0, 1), "");
  EXPECT_EQ(answer(2, 0, 1), "");
  EXPECT_EQ(answer(3, 0, 1), "to 1 2 3: take 0 signal 15 within 30 s");
}

TEST_F(PreemptionTest, ANodeThatDoesNotAnswerIsNotWaitedFor) {
  begin();
  notice(1);
  answer(1, 5, 1);
  EXPECT_EQ(after(kStepAnswerLimit - milliseconds(1)), "");
  EXPECT_EQ(after(milliseconds(1)), "to 1 2 3: take 0 signal 15 within 27 s");
  EXPECT_EQ(answer(2, 5, 1), "");
}

TEST_F(PreemptionTest, AllLimitsOfAShortDeadlineEndBeforeTheNodeGoesAlone) {
  for (const seconds deadline : {seconds(1), seconds(4), seconds(20), seconds(3600)}) {
    preemption = {};
    begin(2);
    const Time noticed = now;
    notice(3, deadline);
    now = preemption.look_again_at();
    EXPECT_LE(now, noticed + kMoreNotices);
    EXPECT_EQ(notice(1, deadline).substr(0, 13), "to 1 2 3: ask") << "too few would be left";
    const Time asked = now;
    now = preemption.look_again_at() - milliseconds(1);
    EXPECT_LE(now, asked + kStepAnswerLimit);
    answer(1, 5, 1);
    answer(2, 5, 1);
    EXPECT_EQ(answer(3, 5, 1), "to 1 2 3: hold 7 #2");
    now = preemption.look_again_at();
    EXPECT_LT(now, noticed + order_limit(deadline)) << deadline.count();
    EXPECT_EQ(after(milliseconds(0)).substr(0, 16), "to 1 2 3: take 0");
  }
}

TEST_F(PreemptionTest, ACheckpointThatANodeDoesNotAnswerIsGivenUp) {
  begin();
  EXPECT_EQ(checkpoint(), "to 1 2 3: ask #1");
  EXPECT_EQ(after(kStepAnswerLimit), "");
  EXPECT_TRUE(preemption.is_quiet());
}

TEST_F(PreemptionTest, OldAndStrangeAnswersChangeNothing) {
  begin();
  notice(1);
  EXPECT_EQ(answer(7, 5, 1), "") << "nobody knows it";
  all_answer(100, 1);
  EXPECT_EQ(answer(1, 500, 1), "") << "of the order before";
  EXPECT_EQ(answer(1, 100, 2), "");
  EXPECT_EQ(answer(1, 500, 2), "") << "the second one";
  EXPECT_EQ(answer(2, 100, 2), "");
  EXPECT_EQ(answer(3, 100, 2), "to 1 2 3: take 102 signal 15 within 30 s");
}

TEST_F(PreemptionTest, ALieEndsTheSearch) {
  begin();
  notice(1);
  EXPECT_EQ(all_answer(std::numeric_limits<std::int64_t>::max(), 1),
            "to 1 2 3: take 0 signal 15 within 30 s");
}

TEST_F(PreemptionTest, ANodeThatTakesNoOrdersLeavesNoStepToAgreeOn) {
  begin(3, 2);
  EXPECT_EQ(notice(2), "");
  EXPECT_EQ(notice(1), "to 1 3: take 0 signal 15 within 30 s");
}

TEST_F(PreemptionTest, ARoundThatCanDoWithoutTheNodeLosesItAlone) {
  begin(2);
  EXPECT_EQ(notice(3), "");
  EXPECT_EQ(after(kMoreNotices), "to 3: take 0 signal 15 within 29 s");
}

TEST_F(PreemptionTest, TheJobEndsWithItsHostSoAllSave) {
  begin(1);
  const Notice of_node{.round = kNoticeRound, .signo = SIGTERM, .deadline = seconds(30)};
  EXPECT_EQ(print(preemption.noticed(3, of_node, *membership, now)), "");
  EXPECT_EQ(print(preemption.noticed(1, of_node, *membership, now, true)), "to 1 2 3: ask #1");
  EXPECT_EQ(all_answer(5, 1), "to 1 2 3: hold 7 #2");
}

TEST_F(PreemptionTest, IfTooFewWouldBeLeftAllSave) {
  begin(2);
  EXPECT_EQ(notice(3), "");
  now += milliseconds(500);
  EXPECT_EQ(notice(1, seconds(10)), "to 1 2 3: ask #1");
  all_answer(100, 1);
  EXPECT_EQ(all_answer(100, 2), "to 1 2 3: take 102 signal 15 within 10 s") << "the sooner one";
}

TEST_F(PreemptionTest, ABrokenRoundEndsTheSearch) {
  begin();
  notice(1);
  membership->failed(2, kNoticeRound, {}, now);
  preemption.follow(*membership);
  EXPECT_TRUE(preemption.is_quiet());
  EXPECT_EQ(answer(1, 5, 1), "");
  EXPECT_EQ(notice(1), "") << "no round runs";
  EXPECT_EQ(notice(1, seconds(30), 2), "");
}

TEST_F(PreemptionTest, AfterACheckpointTheWorkersGoOn) {
  begin();
  EXPECT_EQ(checkpoint(), "to 1 2 3: ask #1");
  EXPECT_EQ(checkpoint(), "") << "one is sought";
  all_answer(100, 1);
  EXPECT_EQ(all_answer(100, 2), "to 1 2 3: take 102 signal 0 within 900 s, go on");
  EXPECT_EQ(checkpoint(), "to 1 2 3: ask #4");
  EXPECT_EQ(notice(2), "") << "it changes what is sought";
  all_answer(200, 4);
  EXPECT_EQ(all_answer(200, 5), "to 1 2 3: take 202 signal 15 within 30 s");
}

}  // namespace
}  // namespace ddprun::rendezvous
