// The common rules of all collectives: tickets that wrap, and the world of one.
#include <ddprun/collective.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "worker/collective/core/reached.h"

namespace ddprun::worker {
namespace {

constexpr Ticket kLast = std::numeric_limits<Ticket>::max();

TEST(Reached, ComparesAcrossTheWrap) {
  EXPECT_TRUE(reached(5, 5));
  EXPECT_TRUE(reached(6, 5));
  EXPECT_FALSE(reached(5, 6));
  EXPECT_TRUE(reached(0, kLast)) << "zero follows the last number";
  EXPECT_TRUE(reached(3, kLast - 2));
  EXPECT_FALSE(reached(kLast, 0));
  EXPECT_FALSE(reached(kLast - 2, 3));
}

TEST(AloneCollective, WaitsForSumsAcrossTheWrapOfItsTickets) {
  const auto alone = make_alone_collective(kLast - 1);
  const auto memory = alone->allocate(sizeof(float));
  const Flat flat{memory.get(), 1, Dtype::kFloat32};
  const Ticket before = alone->launch_sum(flat);
  const Ticket after = alone->launch_sum(flat);
  EXPECT_EQ(before, kLast);
  EXPECT_EQ(after, 0U);
  alone->wait(before);  // would end the process, were it taken for one that was never launched
  alone->wait(after);
}

TEST(AloneCollectiveDeathTest, EndsTheProcessThatWaitsForWhatWasNeverLaunched) {
  const auto alone = make_alone_collective(kLast);
  EXPECT_DEATH(alone->wait(0), "reached");
}

}  // namespace
}  // namespace ddprun::worker
