#include "base/loop.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "base/assert.h"
#include "base/result.h"

namespace ddprun {
namespace {

asio::awaitable<void> throw_out() {
  throw std::runtime_error("lost");
  co_return;
}

asio::awaitable<void> race(asio::io_context& loop, bool& timer_won) {
  using namespace asio::experimental::awaitable_operators;  // NOLINT(google-build-using-namespace):
                                                            // operator||
  asio::steady_timer never(loop, asio::steady_timer::time_point::max());
  asio::steady_timer soon(loop);
  const auto winner =
      co_await (never.async_wait(kAsTuple) || expires(soon, std::chrono::milliseconds(1)));
  timer_won = winner.index() == 1;
}

TEST(Loop, AnExceptionThatEscapesATaskComesOutOfRun) {
  asio::io_context loop(1);
  spawn(loop, "thrower", throw_out());
  EXPECT_THROW(loop.run(), std::runtime_error);
}

TEST(Loop, ADeadlineEndsAWait) {
  asio::io_context loop(1);
  bool timer_won = false;
  spawn(loop, "race", race(loop, timer_won));
  loop.run();
  EXPECT_TRUE(timer_won);
}

TEST(Assert, StopsTheProgramAndNamesTheCondition) {
  EXPECT_DEATH(DDPRUN_ASSERT(1 + 1 == 3), "1 \\+ 1 == 3");
}

TEST(Assert, StopsTheProgramAtAPlaceThatNothingMayReach) {
  EXPECT_DEATH(DDPRUN_UNREACHABLE("a fifth season"), "loop_test.cc:[0-9]+: .*a fifth season");
}

TEST(ResultTest, HoldsAValueOrAnError) {
  const Result<int> good = 3;
  EXPECT_EQ(*good, 3);
  const Result<int> bad = Error(ErrorCode::kLimit, "too long");
  EXPECT_FALSE(bad.has_value());
  EXPECT_EQ(bad.error().message(), "too long");
  EXPECT_THROW(bad.value(), std::runtime_error);
}

}  // namespace
}  // namespace ddprun
