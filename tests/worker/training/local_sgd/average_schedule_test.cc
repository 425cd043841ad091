#include "worker/training/local_sgd/average_schedule.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/worker/forked_ranks.h"

namespace ddprun::worker {
namespace {

// The level of each of the first steps; '-': none.
std::string levels_of(const LocalSgdOptions& options, int ranks, std::int64_t steps) {
  const AverageSchedule schedule(options, ranks);
  std::string text;
  for (std::int64_t step = 0; step < steps; ++step) {
    const auto level = schedule.due(step);
    text += level ? std::to_string(*level) : "-";
  }
  return text;
}

TEST(AverageSchedule, CountsAPeriodFromTheEndOfTheWarmUp) {
  EXPECT_EQ(levels_of({.warmup_steps = 2, .period = 3}, 4, 10), "--0--0--0-");
  EXPECT_EQ(levels_of({.period = 4}, 4, 9), "0---0---0");
  EXPECT_EQ(levels_of({.warmup_steps = 3, .period = 1}, 2, 6), "---000");
}

TEST(AverageSchedule, CountsPeriodsOfLevelsFromTheFirstStepAndMakesTheLastThatIsDue) {
  const LocalSgdOptions options{.warmup_steps = 3, .levels = {{2, 2}, {4, 4}, {8, 8}}};
  EXPECT_EQ(levels_of(options, 8, 17), "----1-0-2-0-1-0-2");
}

std::string refusal(const LocalSgdOptions& options, int ranks = 4) {
  return message_of([&] { const AverageSchedule schedule(options, ranks); });
}

TEST(AverageSchedule, RefusesOptionsThatDoNotFit) {
  EXPECT_EQ(refusal({.warmup_steps = -1}), "LocalSgd: warmup_steps -1 given, expected 0 or more");
  EXPECT_EQ(refusal({.period = 0}), "LocalSgd: period 0 given, expected 1 or more");
  EXPECT_EQ(refusal({.gradient_ranks = 3}),
            "LocalSgd: gradient_ranks 3 given, expected a number that divides the 4 ranks");
  EXPECT_EQ(refusal({.gradient_ranks = 0}),
            "LocalSgd: gradient_ranks 0 given, expected a number that divides the 4 ranks");
  EXPECT_EQ(refusal({.levels = {{2, 3}, {4, 4}}}),
            "LocalSgd: ranks of a level 3 given, expected a number that divides the 4 ranks");
  EXPECT_EQ(refusal({.levels = {{4, 2}, {4, 4}}}),
            "LocalSgd: levels: period 4 with 4 ranks stands behind period 4 with 2 ranks; both "
            "must grow");
  EXPECT_EQ(refusal({.levels = {{2, 2}}}),
            "LocalSgd: levels: the last one has 2 ranks, expected all 4");
  EXPECT_EQ(refusal({.levels = {{2, 2}, {6, 4}}}), "");
}

}  // namespace
}  // namespace ddprun::worker
