// Numbers as ranges.
#include "base/number_ranges.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(NumberRanges, JoinNeighbours) {
  EXPECT_EQ(number_ranges({0, 1, 2, 3}), "0-3");
  EXPECT_EQ(number_ranges({0, 2, 3, 7}), "0,2-3,7");
  EXPECT_EQ(number_ranges({}), "");
}

}  // namespace
}  // namespace ddprun
