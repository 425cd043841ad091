#include "base/text_table.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(TextTable, HasColumnsAsWideAsTheirLongestWord) {
  EXPECT_EQ(text_table({{"A", "B", "C"}, {"long", "", "end"}}), "A     B  C\nlong     end\n");
}

TEST(TextTable, FillsTheLastColumnWithNothing) {
  EXPECT_EQ(text_table({{"ONE"}, {"a"}}), "ONE\na\n");
}

}  // namespace
}  // namespace ddprun
