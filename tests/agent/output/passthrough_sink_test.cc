// A stream that is passed on: whole lines where they come quickly, and its end. Time is moved by
// hand.
#include "agent/output/passthrough_sink.h"

#include <gtest/gtest.h>

#include <string>

#include "agent/output/line_splitter.h"
#include "tests/agent/output/line_times.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

TEST(LineJoiner, PassesWholeLinesOnAtOnceAndTheRestAfterAShortWait) {
  LineJoiner lines;
  EXPECT_EQ(lines.look_again_at(), Time::max());
  EXPECT_EQ(lines.take("a\nb\r\nc", kStart), "a\nb\r\n");
  EXPECT_EQ(lines.look_again_at(), kStart + kPartialLineWait);
  EXPECT_EQ(lines.take("d", kStart + 99ms), "");
  EXPECT_EQ(lines.time_passed(kStart + 99ms), "");
  EXPECT_EQ(lines.time_passed(kStart + kPartialLineWait), "cd");
  EXPECT_EQ(lines.look_again_at(), Time::max());
  EXPECT_EQ(lines.take("\n", kStart + 1s), "\n");
  EXPECT_EQ(lines.take("end", kStart + 1s), "");
  EXPECT_EQ(lines.finish(), "end");
}

TEST(LineJoiner, PassesEveryByteOfALongLineOnAndKnowsWhereItEnds) {
  LineJoiner lines;
  EXPECT_EQ(lines.take("a", kStart), "");
  EXPECT_EQ(lines.take(std::string(kHeldLineBytes, 'x'), kStart).size(), kHeldLineBytes + 1);
  EXPECT_TRUE(lines.in_long_line());
  EXPECT_EQ(lines.take("yy", kStart), "yy");
  EXPECT_EQ(lines.take("z\nnext", kStart), "z\n");
  EXPECT_FALSE(lines.in_long_line());
  EXPECT_EQ(lines.finish(), "next");
}

TEST(StderrTail, KeepsTheLastLinesOfWhateverComes) {
  StderrTail tail;
  for (int line = 0; line < 100'000; ++line) tail.take(std::to_string(line) + "\n");
  const auto lines = tail.lines();
  ASSERT_EQ(lines.size(), kTailLines);
  EXPECT_EQ(lines.front(), "99980");
  EXPECT_EQ(lines.back(), "99999");
}

TEST(StderrTail, IsBoundedForOneEndlessLine) {
  StderrTail tail;
  for (int piece = 0; piece < 100; ++piece) tail.take(std::string(kTailBytes - 1, 'x'));
  tail.take(std::string(3 * kTailBytes, 'x') + "end");
  ASSERT_EQ(tail.lines().size(), 1U);
  EXPECT_EQ(tail.lines()[0].size(), kTailBytes);
  EXPECT_TRUE(tail.lines()[0].ends_with("xend"));
}

}  // namespace
}  // namespace ddprun::agent
