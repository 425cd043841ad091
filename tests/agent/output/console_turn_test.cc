// The turns of processes that write to one console.
#include "agent/output/console_turn.h"

#include <gtest/gtest.h>

#include <chrono>

#include "tests/agent/output/line_times.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

TEST(ConsoleTurn, IsForOneStreamUntilItsLineEndsOrItStalls) {
  ConsoleTurn turn;
  const int a = 0;
  const int b = 0;
  EXPECT_TRUE(turn.is_free_for(&a));
  EXPECT_FALSE(turn.release(&a));
  turn.hold(&a, kStart);
  EXPECT_TRUE(turn.is_held_by(&a));
  EXPECT_FALSE(turn.is_free_for(&b));
  EXPECT_FALSE(turn.release(&b));
  EXPECT_EQ(turn.stalled_at(), kStart + kTurnStall);
  turn.hold(&a, kStart + 500ms);
  EXPECT_EQ(turn.stalled_at(), kStart + 500ms + kTurnStall);
  EXPECT_TRUE(turn.release(&a));
  EXPECT_TRUE(turn.is_free_for(&b));
  EXPECT_EQ(turn.stalled_at(), Time::max());
}

}  // namespace
}  // namespace ddprun::agent
