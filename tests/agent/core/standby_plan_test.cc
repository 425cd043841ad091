#include "agent/core/standby_plan.h"

#include <gtest/gtest.h>

namespace ddprun::agent {
namespace {

using std::chrono::seconds;

const Time kAttemptStart = Time{} + std::chrono::hours(1);

TEST(StandbyPlan, WarmsOneAfterTheOtherAfterTheFirstStep) {
  StandbyPlan plan(true, 2);
  EXPECT_EQ(plan.look_again_at(), Time::max());
  plan.attempt_started(kAttemptStart);
  EXPECT_EQ(plan.look_again_at(), kAttemptStart + StandbyPlan::kLook);
  plan.looked({1, 0}, 0, kAttemptStart + seconds(1));
  EXPECT_EQ(plan.next(), std::nullopt) << "one worker is still importing";
  plan.looked({2, 1}, 0, kAttemptStart + seconds(2));
  EXPECT_EQ(plan.look_again_at(), Time::max()) << "an idle agent does not wake up";
  EXPECT_EQ(plan.next(), 0);
  plan.warming(0, kAttemptStart + seconds(2));
  EXPECT_EQ(plan.next(), std::nullopt);
  plan.waits(0);
  EXPECT_TRUE(plan.is_waiting(0));
  EXPECT_EQ(plan.next(), 1);
  plan.warming(1, kAttemptStart + seconds(3));
  plan.waits(1);
  EXPECT_EQ(plan.next(), std::nullopt);
}

TEST(StandbyPlan, GivesAProgramWithoutStepsSomeTime) {
  StandbyPlan plan(true, 1);
  plan.attempt_started(kAttemptStart);
  plan.looked({0}, 0, kAttemptStart + seconds(29));
  EXPECT_EQ(plan.next(), std::nullopt);
  plan.looked({0}, 0, kAttemptStart + StandbyPlan::kSettled);
  EXPECT_EQ(plan.next(), 0);
}

TEST(StandbyPlan, WaitsForTheLastImportOfAProgramWithoutSteps) {
  StandbyPlan plan(true, 1);
  plan.attempt_started(kAttemptStart);
  plan.looked({0}, 500, kAttemptStart + seconds(20));
  plan.looked({0}, 900, kAttemptStart + seconds(40));
  plan.looked({0}, 900, kAttemptStart + seconds(69));
  EXPECT_EQ(plan.next(), std::nullopt) << "a standby would import what the worker has not yet";
  plan.looked({0}, 900, kAttemptStart + seconds(70));
  EXPECT_EQ(plan.next(), 0);
}

TEST(StandbyPlan, WaitsNoLongerForAProgramThatTriesToImportForEver) {
  StandbyPlan plan(true, 1);
  plan.attempt_started(kAttemptStart);
  std::uint64_t noted = 0;
  seconds passed{0};
  while (!plan.next() && passed < std::chrono::hours(1)) {
    passed += StandbyPlan::kLook;
    plan.looked({0}, ++noted, kAttemptStart + passed);
  }
  EXPECT_EQ(passed, StandbyPlan::kLongestStart);
}

TEST(StandbyPlan, ReplacesWhatWasReleasedInTheNextAttempt) {
  StandbyPlan plan(true, 1);
  plan.attempt_started(kAttemptStart);
  plan.looked({1}, 0, kAttemptStart + seconds(1));
  plan.warming(0, kAttemptStart + seconds(2));
  plan.waits(0);
  plan.attempt_ended();
  plan.released(0);
  EXPECT_EQ(plan.next(), std::nullopt) << "no workers run";
  plan.attempt_started(kAttemptStart + seconds(9));
  EXPECT_EQ(plan.next(), std::nullopt) << "the new ones have done no step";
  plan.looked({1}, 0, kAttemptStart + seconds(10));
  EXPECT_EQ(plan.next(), 0);
}

TEST(StandbyPlan, DoesNotTryAgainWhereOneWasUnfit) {
  StandbyPlan plan(true, 2);
  plan.attempt_started(kAttemptStart);
  plan.looked({1, 1}, 0, kAttemptStart + seconds(1));
  plan.warming(0, kAttemptStart + seconds(2));
  plan.unfit(0);
  EXPECT_EQ(plan.next(), 1);
  plan.ended(1);
  EXPECT_EQ(plan.next(), std::nullopt);
  plan.attempt_ended();
  plan.released(0);
  plan.released(1);
  plan.attempt_started(kAttemptStart + seconds(5));
  plan.looked({1, 1}, 0, kAttemptStart + seconds(6));
  EXPECT_EQ(plan.next(), 1) << "another one may live; the first rank's would be unfit again";
  plan.give_up();
  EXPECT_EQ(plan.next(), std::nullopt);
}

TEST(StandbyPlan, KnowsWhoHasNone) {
  StandbyPlan plan(false, 4);
  EXPECT_EQ(plan.missing(), (std::vector{0, 1, 2, 3})) << "whether or not one is wanted for later";
  plan.warming(0, kAttemptStart);
  plan.waits(1);
  plan.unfit(2);
  plan.ended(3);
  EXPECT_TRUE(plan.missing().empty());
  plan.attempt_ended();
  EXPECT_EQ(plan.missing(), std::vector{3}) << "another one may live in the next attempt";
}

TEST(StandbyPlan, AHangingImportEndsTheStandby) {
  StandbyPlan plan(true, 2);
  plan.attempt_started(kAttemptStart);
  EXPECT_EQ(plan.looked({1, 1}, 0, kAttemptStart + seconds(1)), std::nullopt);
  plan.warming(0, kAttemptStart + seconds(1));
  plan.waits(0);
  plan.warming(1, kAttemptStart + seconds(2));
  const Time late = kAttemptStart + seconds(2) + StandbyPlan::kLongestWarming;
  EXPECT_EQ(plan.look_again_at(), late);
  EXPECT_EQ(plan.looked({1, 1}, 0, late - seconds(1)), std::nullopt);
  EXPECT_EQ(plan.look_again_at(), late);
  EXPECT_EQ(plan.looked({1, 1}, 0, late), 1);
  plan.unfit(1);
  EXPECT_EQ(plan.looked({1, 1}, 0, late), std::nullopt);
  EXPECT_EQ(plan.look_again_at(), Time::max());
}

TEST(StandbyPlan, WaitsForTheFirstStepAloneIfNoneIsWanted) {
  StandbyPlan plan(false, 1);
  plan.attempt_started(kAttemptStart);
  plan.looked({1}, 0, kAttemptStart + seconds(1));
  EXPECT_TRUE(plan.is_settled());
  EXPECT_EQ(plan.look_again_at(), Time::max());
  EXPECT_EQ(plan.next(), std::nullopt);
}

}  // namespace
}  // namespace ddprun::agent
