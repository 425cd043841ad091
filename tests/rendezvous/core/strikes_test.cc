#include "rendezvous/core/strikes.h"

#include <gtest/gtest.h>

namespace ddprun::rendezvous {
namespace {

using namespace std::chrono_literals;

class StrikesTest : public testing::Test {
 protected:
  StrikesTest() { strikes.set_rules({.most = 2, .half_life = 1h}); }

  // Each failure is of another round.
  bool fail(const std::string& node, NodeFault fault, int rank = 0, const std::string& words = "") {
    return strikes.failed(node, ++round, {.rank = rank, .words = words, .fault = fault}, now);
  }
  std::chrono::nanoseconds pause(const std::string& node) {
    return std::max(strikes.pause_ends(node), now) - now;
  }

  Strikes strikes;
  std::int64_t round = 0;
  Time now{1000h};
};

TEST_F(StrikesTest, EachFaultOfANodeIsOneAndAFailureOfTheProgramIsNone) {
  int node = 0;
  for (const NodeFault fault : {NodeFault::kLost, NodeFault::kInKernel, NodeFault::kDevice,
                                NodeFault::kMemory, NodeFault::kStandstill, NodeFault::kExitCode}) {
    const std::string name = "host-" + std::to_string(++node);
    EXPECT_TRUE(fail(name, fault, node)) << name;
    EXPECT_EQ(strikes.count(name, now), 1) << name;
  }
  EXPECT_FALSE(fail("host-0", NodeFault::kNone));
  EXPECT_EQ(strikes.count("host-0", now), 0);
}

TEST_F(StrikesTest, AFailureThatIsToldTwiceIsOne) {
  EXPECT_TRUE(fail("a", NodeFault::kLost));
  --round;
  EXPECT_FALSE(fail("a", NodeFault::kExitCode));
  EXPECT_EQ(strikes.count("a", now), 1);
}

TEST_F(StrikesTest, AFailureOfLongAgoExcusesNobody) {
  fail("b", NodeFault::kMemory);
  now += 4h;
  EXPECT_TRUE(fail("a", NodeFault::kMemory));
}

TEST_F(StrikesTest, AStrikeIsHalvedAtTheEndOfEachHalfLifeAndForgottenAfterFour) {
  fail("a", NodeFault::kLost);
  now += 59min;
  EXPECT_EQ(strikes.count("a", now), 1);
  now += 1min;
  EXPECT_EQ(strikes.count("a", now), 0.5);
  now += 2h;
  EXPECT_EQ(strikes.count("a", now), 0.125);
  EXPECT_FALSE(strikes.forget_old(now));
  now += 1h;
  EXPECT_TRUE(strikes.forget_old(now));
  EXPECT_TRUE(strikes.empty());
}

TEST_F(StrikesTest, TwoWithinAHalfLifeMakeANodeSitOutAndTwoFurtherApartDoNot) {
  fail("a", NodeFault::kLost);
  EXPECT_EQ(pause("a"), 0s);
  now += 59min;
  fail("a", NodeFault::kLost);
  EXPECT_EQ(pause("a"), 60s);
  EXPECT_EQ(strikes.next_return(now), now + 60s);
  fail("b", NodeFault::kLost);
  now += 61min;
  fail("b", NodeFault::kLost);
  EXPECT_EQ(pause("b"), 0s);
}

TEST_F(StrikesTest, ThePauseDoublesUpToAnHour) {
  fail("a", NodeFault::kLost);
  for (const auto expected : {60s, 120s, 240s, 480s, 960s, 1920s, 3600s, 3600s}) {
    fail("a", NodeFault::kLost);
    EXPECT_EQ(pause("a"), expected);
  }
}

TEST_F(StrikesTest, TheSameExceptionOfARankOnAnotherNodeIsTheProgramsAndUndoesTheFirst) {
  const std::string words = "torch.AcceleratorError: CUDA error: unknown error";
  fail("a", NodeFault::kDevice, 3, words);
  fail("a", NodeFault::kDevice, 3, words);
  EXPECT_EQ(pause("a"), 60s);
  EXPECT_FALSE(fail("b", NodeFault::kDevice, 3, words));
  EXPECT_TRUE(strikes.empty());
  EXPECT_FALSE(fail("a", NodeFault::kDevice, 3, words));
}

TEST_F(StrikesTest, AnotherRankExceptionOrFaultOnAnotherNodeIsItsOwn) {
  fail("a", NodeFault::kDevice, 3, "RuntimeError: one");
  EXPECT_TRUE(fail("b", NodeFault::kDevice, 4, "RuntimeError: one"));
  EXPECT_TRUE(fail("c", NodeFault::kDevice, 3, "ValueError: two"));
  EXPECT_TRUE(fail("d", NodeFault::kExitCode, 3, "RuntimeError: one"));
  EXPECT_EQ(strikes.count("a", now), 1);
}

TEST_F(StrikesTest, AFailureOfSeveralNodesInOneRoundIsTheProgramsOnWhicheverRank) {
  const Failure failure{.rank = 0, .words = "RuntimeError: x", .fault = NodeFault::kDevice};
  EXPECT_TRUE(strikes.failed("a", 7, failure, now));
  Failure other = failure;
  other.rank = 4;
  EXPECT_FALSE(strikes.failed("b", 7, other, now));
  EXPECT_TRUE(strikes.empty());
}

TEST_F(StrikesTest, AKillForMemoryCountsOnlyIfNoOtherNodeHadOne) {
  EXPECT_TRUE(fail("a", NodeFault::kMemory, 0));
  EXPECT_FALSE(fail("b", NodeFault::kMemory, 5));
  EXPECT_TRUE(strikes.empty());
}

TEST_F(StrikesTest, WithoutAThresholdNobodySitsOut) {
  strikes.set_rules({.most = 0, .half_life = 1h});
  EXPECT_FALSE(fail("a", NodeFault::kLost));
  EXPECT_TRUE(strikes.empty());
}

TEST_F(StrikesTest, OfANodeThatIsForgivenNothingIsLeft) {
  fail("a", NodeFault::kLost);
  EXPECT_TRUE(strikes.forgive("a"));
  EXPECT_FALSE(strikes.forgive("a"));
  EXPECT_TRUE(strikes.empty());
}

TEST_F(StrikesTest, ATextCarriesThemToTheNextJob) {
  fail("a", NodeFault::kLost);
  now += 10min;
  fail("a", NodeFault::kLost);
  fail("b", NodeFault::kLost);
  now += 20s;
  const std::string text = strikes.text(now);
  EXPECT_EQ(text, "a strikes=620,20 pauses=1 left=40\nb strikes=20 pauses=0 left=0\n");
  Strikes next;
  next.set_rules(strikes.rules());
  ASSERT_TRUE(next.add(text, now));
  EXPECT_EQ(next.text(now), text);
  now += 50min;
  EXPECT_EQ(next.count("a", now), 1.5);
  // Said again, by another node, they are no more than they are.
  ASSERT_TRUE(next.add(text, now));
  EXPECT_EQ(next.count("a", now), 1.5);
}

TEST_F(StrikesTest, ABadLineIsAnError) {
  for (const char* const bad :
       {"a", "a strikes=1", "a strikes=x pauses=0 left=0", "a strikes=-1 pauses=0 left=0",
        " strikes=1 pauses=0 left=0", "a strikes=1 pauses=0 left=0 more",
        "a strikes=1 pauses=0 left=9999999", "a strikes=1 pause=0 left=0",
        "a strikes=1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1 pauses=0 left=0"}) {
    Strikes next;
    EXPECT_FALSE(next.add(bad, now)) << bad;
    EXPECT_TRUE(next.empty()) << bad;
  }
}

TEST_F(StrikesTest, MemoryAndTextAreBounded) {
  for (int node = 0; node < 1000; ++node)
    for (int times = 0; times < 20; ++times)
      fail(std::string(200, 'x') + std::to_string(node), NodeFault::kLost);
  EXPECT_FALSE(strikes.has(std::string(200, 'x') + "0"));
  EXPECT_TRUE(strikes.has(std::string(200, 'x') + "999"));
  EXPECT_LE(strikes.text(now).size(), kMostStrikesText);
  EXPECT_FALSE(fail("two words", NodeFault::kLost));
}

}  // namespace
}  // namespace ddprun::rendezvous
