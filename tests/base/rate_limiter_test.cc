#include "base/rate_limiter.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

using std::chrono::seconds;

TEST(RateLimiter, SaysTheFirstAtOnceAndThenCountsForAWhile) {
  const RateLimiter::Time start{};
  RateLimiter limiter(seconds(10));
  EXPECT_EQ(limiter.happened(start), 0U);
  EXPECT_EQ(limiter.happened(start + seconds(1)), std::nullopt);
  EXPECT_EQ(limiter.happened(start + seconds(9)), std::nullopt);
  EXPECT_EQ(limiter.happened(start + seconds(10)), 2U);
  EXPECT_EQ(limiter.happened(start + seconds(19)), std::nullopt);
  EXPECT_EQ(limiter.happened(start + seconds(60)), 1U);
  EXPECT_EQ(limiter.happened(start + seconds(90)), 0U);
}

TEST(RateLimiter, ALineTellsHowManyWereLeftOut) {
  const RateLimiter::Time start{};
  RateLimiter limiter(seconds(10));
  EXPECT_EQ(limiter.line("refused", start), "refused");
  EXPECT_EQ(limiter.line("refused", start + seconds(1)), std::nullopt);
  EXPECT_EQ(limiter.line("refused", start + seconds(10)), "refused (1 more before it)");
}

}  // namespace
}  // namespace ddprun
