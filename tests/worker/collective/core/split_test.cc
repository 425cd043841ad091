// The places of ranks in groups.
#include "worker/collective/core/split.h"

#include <gtest/gtest.h>

namespace ddprun::worker {
namespace {

TEST(GroupPlace, OrdersByKeyAndThenByRank) {
  const std::vector<SplitRequest> requests{{0, 5}, {1, 0}, {0, 5}, {0, -1}, {1, 0}};
  EXPECT_EQ(group_place(requests, 0).rank, 1);
  EXPECT_EQ(group_place(requests, 1).rank, 0);
  EXPECT_EQ(group_place(requests, 2).rank, 2);
  EXPECT_EQ(group_place(requests, 3).rank, 0);
  EXPECT_EQ(group_place(requests, 4).rank, 1);
  EXPECT_EQ(group_place(requests, 0).ranks, 3);
  EXPECT_EQ(group_place(requests, 1).ranks, 2);
}

TEST(GroupPlace, IsInNoGroupWithANegativeColor) {
  const std::vector<SplitRequest> requests{{-1, 0}, {0, 0}, {-1, 0}};
  EXPECT_EQ(group_place(requests, 0).ranks, 0);
  EXPECT_EQ(group_place(requests, 1).ranks, 1);
  EXPECT_EQ(group_place(requests, 2).ranks, 0);
}

}  // namespace
}  // namespace ddprun::worker
