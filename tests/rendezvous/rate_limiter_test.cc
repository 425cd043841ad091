#include "rendezvous/rate_limiter.h"

#include <gtest/gtest.h>

namespace ddprun::rendezvous {
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

}  // namespace
}  // namespace ddprun::rendezvous
