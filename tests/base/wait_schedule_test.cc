// When a wait is told of.
#include "base/wait_schedule.h"

#include <gtest/gtest.h>

#include <vector>

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using Time = WaitSchedule::Time;

// The seconds after the wait's begin at which it is told, if it is looked at once a second.
std::vector<int> told(WaitSchedule& schedule, Time begin, int last) {
  std::vector<int> at;
  for (int second = 0; second <= last; ++second) {
    if (schedule.is_due(begin + std::chrono::seconds(second))) at.push_back(second);
  }
  return at;
}

TEST(WaitSchedule, TellsAfterFiveSecondsAndThenEverMoreRarely) {
  WaitSchedule schedule;
  const Time begin{100s};
  EXPECT_FALSE(schedule.is_waiting());
  EXPECT_FALSE(schedule.is_due(begin));
  schedule.begin(begin);
  EXPECT_EQ(schedule.look_again_at(), begin + 5s);
  EXPECT_EQ(told(schedule, begin, 1300),
            (std::vector<int>{5, 15, 35, 75, 155, 315, 615, 915, 1215}));
  EXPECT_EQ(schedule.waited(begin + 7s), 7s);
}

TEST(WaitSchedule, BeginsAnewAndEnds) {
  WaitSchedule schedule;
  schedule.begin(Time{0s});
  told(schedule, Time{0s}, 100);
  schedule.begin(Time{200s});
  EXPECT_EQ(schedule.look_again_at(), Time{205s});
  schedule.end();
  EXPECT_FALSE(schedule.is_due(Time{1000s}));
}

}  // namespace
}  // namespace ddprun
