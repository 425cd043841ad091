// The watch over uninterruptible sleep.
#include "agent/monitors/sleep_watch.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <vector>

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

TEST(SleepTable, NamesAWorkerThatSleptInEachLookForAsLongAsTheLimit) {
  SleepTable table(3s);
  EXPECT_EQ(table.look({{7, true}, {8, false}}, Time(10s)), std::nullopt);
  EXPECT_EQ(table.look({{7, true}, {8, true}}, Time(12s)), std::nullopt);
  EXPECT_EQ(table.look({{7, true}, {8, true}}, Time(13s)), 7);
}

TEST(SleepTable, AWorkerThatWokeUpBeginsAnew) {
  SleepTable table(3s);
  EXPECT_EQ(table.look({{7, true}}, Time(10s)), std::nullopt);
  EXPECT_EQ(table.look({{7, false}}, Time(11s)), std::nullopt);
  EXPECT_EQ(table.look({{7, true}}, Time(12s)), std::nullopt);
  EXPECT_EQ(table.look({{7, true}}, Time(14s)), std::nullopt);
  EXPECT_EQ(table.look({{7, true}}, Time(15s)), 7);
}

TEST(SleepTable, AWorkerOfTheNextAttemptIsAnother) {
  SleepTable table(3s);
  EXPECT_EQ(table.look({{7, true}}, Time(10s)), std::nullopt);
  EXPECT_EQ(table.look({}, Time(11s)), std::nullopt);
  EXPECT_EQ(table.look({{7, true}}, Time(14s)), std::nullopt);
}

TEST(SleepWatch, AnOrdinarySleepIsNone) {
  asio::io_context loop{1};
  int looks = 0;
  const SleepWatch watch(
      loop, 1ms, [&looks] { return ++looks, std::vector{::getpid()}; },
      [](pid_t) { FAIL() << "this process runs"; });
  while (looks < 3) loop.run_one();
}

}  // namespace
}  // namespace ddprun::agent
