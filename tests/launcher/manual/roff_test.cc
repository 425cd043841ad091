#include "launcher/manual/roff.h"

#include <gtest/gtest.h>

namespace ddprun::launcher {
namespace {

TEST(Roff, KeepsWhatAnOptionIsMadeOf) {
  EXPECT_EQ(roff("plain text"), "plain text");
  EXPECT_EQ(roff("--tee"), "\\-\\-tee");
  EXPECT_EQ(roff("a\\b ~ ^ `c'"), "a\\eb \\(ti \\(ha \\(gac\\(aq");
}

TEST(Roff, NamesWhatIsNotAscii) {
  EXPECT_EQ(roff("K=V,…"), "K=V,\\[u2026]");
  EXPECT_EQ(roff("é😀"), "\\[u00E9]\\[u1F600]");
}

TEST(Roff, ShowsABadByteAsOne) {
  EXPECT_EQ(roff("a\xE2\x80"), "a\\[uFFFD]\\[uFFFD]");
  EXPECT_EQ(roff("\x80z"), "\\[uFFFD]z");
  EXPECT_EQ(roff("\xC3("), "\\[uFFFD](");
}

TEST(Roff, BeginsNoRequest) { EXPECT_EQ(roff(".so x\n'br\na.b"), "\\&.so x\n\\&\\(aqbr\na.b"); }

}  // namespace
}  // namespace ddprun::launcher
