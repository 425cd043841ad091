#include "rendezvous/core/restart_budget.h"

#include <gtest/gtest.h>

namespace ddprun::rendezvous {
namespace {

using namespace std::chrono_literals;

class RestartBudgetTest : public testing::Test {
 protected:
  // An attempt runs for `ran` and fails. Returns whether a restart is left.
  bool fail_after(std::chrono::milliseconds ran) {
    budget.attempt_started(rules, now);
    now += ran;
    const bool granted = budget.take(now);
    wait = granted && budget.not_before() > now ? budget.not_before() - now : 0ms;
    now += wait;
    return granted;
  }

  RestartRules rules;
  RestartBudget budget{42};
  Time now{1h};
  std::chrono::nanoseconds wait{};
};

TEST_F(RestartBudgetTest, PlainCountsOverTheWholeJobAndNeverWaits) {
  rules.max_restarts = 2;
  EXPECT_TRUE(fail_after(0ms));
  EXPECT_EQ(wait, 0ms);
  EXPECT_TRUE(fail_after(24h));
  EXPECT_EQ(wait, 0ms);
  EXPECT_FALSE(fail_after(24h));
  EXPECT_EQ(budget.restarts(), 2);
}

TEST_F(RestartBudgetTest, GoesOnWithWhatWasSpentUnderAnotherLeader) {
  budget.resume(2, {.max_restarts = 3}, now);
  EXPECT_TRUE(budget.take(now));
  EXPECT_LE(budget.not_before(), now);
  EXPECT_EQ(budget.restarts(), 3);
  EXPECT_FALSE(budget.take(now));
}

TEST_F(RestartBudgetTest, AWindowGivesTheBudgetBack) {
  rules = {.max_restarts = 2, .window = 10s};
  EXPECT_TRUE(fail_after(1s));
  EXPECT_TRUE(fail_after(1s));
  EXPECT_TRUE(fail_after(10s));  // both are older than the window now
  EXPECT_TRUE(fail_after(1s));
  EXPECT_FALSE(fail_after(1s));
  EXPECT_EQ(budget.restarts(), 4);
}

TEST_F(RestartBudgetTest, TheFirstRestartIsImmediateAndTheNextWaitTwiceAsLongEachTime) {
  rules = {.max_restarts = 100, .backoff = 1s, .backoff_max = 8s};
  fail_after(10ms);
  EXPECT_EQ(wait, 0ms);
  for (const auto expected : {1s, 2s, 4s, 8s, 8s}) {
    fail_after(10ms);
    EXPECT_LE(wait, expected);
    EXPECT_GE(wait, expected / 2);
  }
}

TEST_F(RestartBudgetTest, ProgressBeginsAnew) {
  rules = {.max_restarts = 100, .backoff = 1s, .backoff_max = 8s};
  fail_after(10ms);
  fail_after(10ms);
  EXPECT_GT(wait, 0ms);
  fail_after(8s);
  EXPECT_EQ(wait, 0ms);
}

TEST_F(RestartBudgetTest, WaitsAreSpread) {
  RestartBudget other{43};
  rules = {.max_restarts = 100, .backoff = 1s, .backoff_max = 8s};
  for (auto* one : {&budget, &other}) {
    one->attempt_started(rules, now);
    one->take(now);
    one->take(now);
  }
  EXPECT_NE(budget.not_before(), other.not_before());
}

TEST_F(RestartBudgetTest, ACrashLoopDoesNotSpinHoweverLargeTheCount) {
  rules.max_restarts = 1'000'000;
  for (int i = 0; i < kFreeRestarts; ++i) {
    ASSERT_TRUE(fail_after(1ms));
    ASSERT_EQ(wait, 0ms);
  }
  fail_after(1ms);
  EXPECT_GE(wait, kDefaultBackoff / 2);
  for (int i = 0; i < 20; ++i) fail_after(1ms);
  EXPECT_GE(wait, kDefaultBackoffMax / 2);
  EXPECT_LE(wait, kDefaultBackoffMax);
  fail_after(kShortAttempt);
  EXPECT_EQ(wait, 0ms);
}

}  // namespace
}  // namespace ddprun::rendezvous
