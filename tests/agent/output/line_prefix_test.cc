// The prefix of tee'd lines.
#include "agent/output/line_prefix.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace ddprun::agent {
namespace {

std::string prefix(std::string_view text) {
  return expand_prefix(text, {.role_name = "trainer",
                              .local_rank = 1,
                              .rank = 9,
                              .hostname = "node3.cluster.example",
                              .restart = 2});
}

TEST(LinePrefix, FillsInEachMacroWithAndWithoutBraces) {
  EXPECT_EQ(prefix("[${role_name}${local_rank}]:"), "[trainer1]:");
  EXPECT_EQ(prefix("<$rank|${hostname}> "), "<9|node3> ");
  EXPECT_EQ(prefix("$restart/$local_rank:"), "2/1:");
}

// Each expectation is what Python's string.Template(...).safe_substitute() gives.
TEST(LinePrefix, LeavesWhatIsNoMacroAsSafeSubstituteDoes) {
  EXPECT_EQ(prefix("${unknown} $unknown"), "${unknown} $unknown");
  EXPECT_EQ(prefix("$ranks ${rank"), "$ranks ${rank");
  EXPECT_EQ(prefix("${ rank} ${} $"), "${ rank} ${} $");
  EXPECT_EQ(prefix("$$rank $$$rank $1"), "$rank $9 $1");
  EXPECT_EQ(prefix("${Rank} $RANK"), "${Rank} $RANK");
  EXPECT_EQ(prefix("$rank-$rank.x"), "9-9.x");
  EXPECT_EQ(prefix(""), "");
}

TEST(LinePrefix, DoesNotLookForMacrosInValues) {
  EXPECT_EQ(expand_prefix("${role_name}", {.role_name = "$rank"}), "$rank");
}

}  // namespace
}  // namespace ddprun::agent
