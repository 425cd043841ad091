#include "agent/monitors/step_history.h"

#include <gtest/gtest.h>

namespace ddprun::agent {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const Time kStart = Time{} + std::chrono::hours(1);

WorkerProgress done(std::uint64_t steps, Time last_step) {
  return {.steps = steps, .last_step = last_step};
}

TEST(StepHistory, ARateAndATimeOfEachLook) {
  StepHistory history;
  history.note({done(10, kStart)}, kStart + seconds(1));
  EXPECT_TRUE(history.of(0, kStart + seconds(1)).empty());
  history.note({done(30, kStart + seconds(5))}, kStart + seconds(6));
  const auto samples = history.of(0, kStart + seconds(8));
  ASSERT_EQ(samples.size(), 1U);
  EXPECT_DOUBLE_EQ(samples[0].per_second, 4);
  EXPECT_DOUBLE_EQ(samples[0].step_s, 0.25);
  EXPECT_DOUBLE_EQ(samples[0].age_s, 2);
  EXPECT_TRUE(history.of(1, kStart).empty());
}

TEST(StepHistory, WithoutAStepThereIsNoTimeOfOne) {
  StepHistory history;
  history.note({done(10, kStart)}, kStart);
  history.note({done(10, kStart)}, kStart + seconds(5));
  ASSERT_EQ(history.of(0, kStart).size(), 1U);
  EXPECT_EQ(history.of(0, kStart)[0].per_second, 0);
  EXPECT_EQ(history.of(0, kStart)[0].step_s, 0);
}

TEST(StepHistory, AWorkerThatStartsAnewBeginsAtZero) {
  StepHistory history;
  history.note({done(100, kStart)}, kStart);
  history.note({done(5, kStart + seconds(4))}, kStart + seconds(5));
  EXPECT_DOUBLE_EQ(history.of(0, kStart)[0].per_second, 1);
  EXPECT_EQ(history.of(0, kStart)[0].step_s, 0);
}

TEST(StepHistory, KeepsTheLastMinutesAlone) {
  StepHistory history;
  for (int i = 0; i < 10'000; ++i)
    history.note({done(static_cast<std::uint64_t>(i), kStart)}, kStart + i * StepHistory::kEvery);
  EXPECT_EQ(history.of(0, kStart).size(),
            static_cast<std::size_t>(http::kChartLength / StepHistory::kEvery) + 1);
}

}  // namespace
}  // namespace ddprun::agent
