// The differences of weights that are a parting, and those that are rounding. Pure: no ranks.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "worker/training/tensors/averages/same_weights.h"

namespace ddprun::worker {
namespace {

const std::vector<WeightsPlace> kOne{{"weight", 0x1p-23}};

WeightsReport report(double now, double before) {
  return {.steps = 1, .now = {now}, .before = {before}};
}

TEST(SameWeights, HavePartedWhereOneHasMadeAnotherStep) {
  const auto why = parted({report(1.5, 1.0), report(1.5, 1.0), report(1.0, 1.0)}, kOne, {}, 7);
  ASSERT_TRUE(why);
  EXPECT_EQ(why->find("before pass 7 the weights of rank 0 and rank 2 became unlike: there a "
                      "number of parameter 'weight' has changed by 0.5, and by 0. "),
            0U)
      << *why;
}

// However far apart the weights are by now: it comes slowly, and no step is to blame.
TEST(SameWeights, HaveNotPartedWhereStepsAreRoundedInUnlikeWays) {
  EXPECT_FALSE(parted({report(1.5, 1.0), report(1.5 + 0x1p-22, 1.0)}, kOne, {}, 7));
  EXPECT_FALSE(parted({report(1.5, 1.0), report(1.5001, 1.0)}, kOne, {}, 7));
  EXPECT_FALSE(parted({report(1.5, 1.0), report(2.5, 2.0)}, kOne, {}, 7));
  EXPECT_TRUE(parted({report(1.5, 1.0), report(1.51, 1.0)}, kOne, {}, 7));
}

TEST(SameWeights, HavePartedBySmallStepsToo) {
  EXPECT_TRUE(parted({report(1.0 + 0x1p-19, 1.0), report(1.0, 1.0)}, kOne, {}, 7));
}

TEST(SameWeights, HavePartedWhereNobodyKnowsTheirSteps) {
  const WeightsReport here{.steps = 0, .now = {1.0}, .before = {}};
  const WeightsReport there{.steps = 0, .now = {1.1}, .before = {}};
  EXPECT_FALSE(parted({here, here}, kOne, {}, 1));
  EXPECT_TRUE(parted({here, there}, kOne, {}, 1));
}

TEST(SameWeights, HavePartedWhereOneHasNotCalledStep) {
  WeightsReport without = report(1.0, 1.0);
  without.steps = 0;
  EXPECT_TRUE(parted({report(1.0, 1.0), without}, kOne, {}, 3));
}

TEST(SameWeights, MayBeNoNumbersOnAllRanks) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(parted({report(nan, 1.0), report(nan, 1.0)}, kOne, {}, 3));
  EXPECT_TRUE(parted({report(nan, 1.0), report(1.0, 1.0)}, kOne, {}, 3));
}

// Weights hide it, options do not.
TEST(SameWeights, HavePartedWhereOptionsAreUnlike) {
  const std::vector<StepSetting> settings{{"lr", 0, 0.1}, {"momentum", 0, 0.9}};
  WeightsReport here = report(1.5, 1.0);
  here.settings = {0.1, 0.9};
  WeightsReport there = here;
  there.settings[1] += 0x1p-53;
  const auto why = parted({here, here, there}, kOne, settings, 7);
  ASSERT_TRUE(why);
  EXPECT_EQ(why->find("before pass 7 the optimizers of rank 0 and rank 2 became unlike: there "
                      "momentum of group 0 is 0.9, and 0.9000000000000001. "),
            0U)
      << *why;
}

TEST(SameWeights, HaveNotPartedWhereUnlikeProcessorsRoundASchedule) {
  const std::vector<StepSetting> settings{{"lr", 0, 0.1}};
  WeightsReport here = report(1.5, 1.0);
  here.settings = {0.1};
  here.rounding = 1;
  WeightsReport there = here;
  there.settings = {0.1 + 0x1p-50};
  EXPECT_TRUE(parted({here, there}, kOne, settings, 7));
  there.rounding = 2;
  EXPECT_FALSE(parted({here, there}, kOne, settings, 7));
  there.settings = {0.1 + 0x1p-40};
  EXPECT_TRUE(parted({here, there}, kOne, settings, 7));
}

TEST(SameWeights, HavePartedWhereOneCountsItsStepsOtherwise) {
  const WeightsReport here = report(1.5, 1.0);
  WeightsReport there = here;
  there.counts = 1;
  EXPECT_TRUE(parted({here, there}, kOne, {}, 7));
}

}  // namespace
}  // namespace ddprun::worker
