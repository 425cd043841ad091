// Deadlines that workers set for themselves.
#include "agent/monitors/timer_table.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ddprun::agent {
namespace {

TEST(TimerTable, SetsMovesAndReleasesDeadlines) {
  TimerTable table;
  ASSERT_TRUE(
      table.apply(R"({"version":1,"pid":7,"scope_id":"a","expiration_time":100.5,"signal":9})"));
  ASSERT_TRUE(
      table.apply(R"({"version":1,"pid":7,"scope_id":"b","expiration_time":50,"signal":15})"));
  EXPECT_EQ(table.next(), 50);
  EXPECT_TRUE(table.take_expired(49.9).empty());
  ASSERT_TRUE(
      table.apply(R"({"version":1,"pid":7,"scope_id":"b","expiration_time":-1,"signal":15})"));
  EXPECT_EQ(table.next(), 100.5);
  EXPECT_EQ(table.take_expired(101), (std::vector<ExpiredTimer>{{7, "a", 9}}));
  EXPECT_EQ(table.next(), std::nullopt);
}

TEST(TimerTable, RefusesWhatIsNoRequest) {
  TimerTable table;
  for (const char* line :
       {"", "x", "[]", "{}", R"({"version":2,"pid":7,"expiration_time":1})",
        R"({"version":1,"pid":1,"expiration_time":1})", R"({"version":1,"pid":7})",
        R"({"version":1,"pid":-4,"expiration_time":1,"signal":9})",
        R"({"version":1,"pid":7,"expiration_time":1,"signal":999})"})
    EXPECT_FALSE(table.apply(line)) << line;
  EXPECT_EQ(table.next(), std::nullopt);
}

TEST(TimerTable, ForgetsADeadProcessAndIsBounded) {
  TimerTable table;
  for (std::size_t i = 0; i < kMaxTimers; ++i)
    ASSERT_TRUE(table.apply(R"({"version":1,"pid":7,"expiration_time":1,"scope_id":")" +
                            std::to_string(i) + "\"}"));
  EXPECT_FALSE(table.apply(R"({"version":1,"pid":8,"expiration_time":1})"));
  table.forget(7);
  EXPECT_EQ(table.next(), std::nullopt);
}

TEST(TimerTable, RefusesNumbersThatAreNoPidOrSignal) {
  TimerTable table;
  for (const char* rest :
       {R"("pid":7,"signal":-9)", R"("pid":7,"signal":0)", R"("pid":7,"signal":1e300)",
        R"("pid":7,"signal":"KILL")", R"("pid":7.5)", R"("pid":1e300)", R"("pid":4294967303)",
        R"("pid":-7)", R"("pid":18446744073709551615)", R"("pid":"7")"})
    EXPECT_FALSE(table.apply(fmt::format(R"({{"version":1,"expiration_time":1,{}}})", rest)))
        << rest;
  EXPECT_EQ(table.next(), std::nullopt);
}

}  // namespace
}  // namespace ddprun::agent
