#include "base/shown_text.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(ShownText, LeavesWhatPeopleReadAsItIs) {
  EXPECT_EQ(shown_text("rank 3 on node-7: \"größer\" 日本 😀 [rank0]:"),
            "rank 3 on node-7: \"größer\" 日本 😀 [rank0]:");
  EXPECT_EQ(shown_text(""), "");
}

TEST(ShownText, HasABlankForEachControlCharacter) {
  for (int byte = 0; byte < 0x20; ++byte)
    EXPECT_EQ(shown_text(std::string("a") + static_cast<char>(byte) + "b"), "a b") << byte;
  EXPECT_EQ(shown_text("a\x7f"
                       "b"),
            "a b");
  EXPECT_EQ(shown_text("\x1b[2Jgone\x1b]0;title\x07"), " [2Jgone ]0;title ");
  for (int byte = 0x80; byte < 0xA0; ++byte)
    EXPECT_EQ(shown_text(std::string("a\xC2") + static_cast<char>(byte) + "b"), "a b") << byte;
}

TEST(ShownText, EndsNoLineAndTurnsNoLine) {
  for (const char* mark : {"\r\n", "\u2028", "\u2029", "\u0085", "\u202e", "\u2066", "\u200f",
                           "\u061c", "\ufeff", "\u200b"}) {
    const std::string shown = shown_text(std::string("a") + mark + "[rank0]: b");
    EXPECT_TRUE(shown == "a [rank0]: b" || shown == "a  [rank0]: b") << shown;
  }
}

TEST(ShownText, IsValidUtf8) {
  EXPECT_EQ(shown_text("a\xff"
                       "b"),
            "a\uFFFDb");
  EXPECT_EQ(shown_text("a\x9b"
                       "2J"),
            "a\uFFFD2J");                             // C1 as one byte
  EXPECT_EQ(shown_text("\xC0\x8A"), "\uFFFD\uFFFD");  // a newline in an overlong form
  EXPECT_EQ(shown_text("\xE2\x80"), "\uFFFD\uFFFD");  // cut off
  EXPECT_EQ(shown_text("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
}

TEST(ShownText, IsBoundedAndCutBetweenCharacters) {
  EXPECT_EQ(shown_text("abcd", 4), "abcd");
  EXPECT_EQ(shown_text("abcde", 4), "abcd…");
  EXPECT_EQ(shown_text("abcß", 4), "abc…");
  EXPECT_LE(shown_text(std::string(1 << 20, 'x')).size(), kShownBytes + 3);
}

}  // namespace
}  // namespace ddprun
