// A worker's bytes on the console: UTF-8, progress bars, the last lines.
#include "agent/output/console_text.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace ddprun::agent {
namespace {

using namespace std::string_literals;

std::string shown(std::string_view text) {
  std::string out;
  append_whole_utf8(out, text);
  return out;
}

TEST(Utf8, KeepsWhatIsValid) {
  const std::string text = "plain ascii of some length \0, \u00E9 \u20AC \U0001F680 \uFFFD"s;
  EXPECT_EQ(shown(text), text);
}

// Each expectation is what Python's bytes.decode("utf-8", "replace") gives.
TEST(Utf8, ReplacesEachBrokenSequenceByOneReplacementCharacter) {
  EXPECT_EQ(shown("a\xFFz"), "a\uFFFDz");
  EXPECT_EQ(shown("\x80\x80"), "\uFFFD\uFFFD");
  EXPECT_EQ(shown("\xE2\x82z"), "\uFFFDz");                          // cut off before z
  EXPECT_EQ(shown("\xC0\xAF"), "\uFFFD\uFFFD");                      // overlong
  EXPECT_EQ(shown("\xE0\x80\x80"), "\uFFFD\uFFFD\uFFFD");            // overlong
  EXPECT_EQ(shown("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");            // a surrogate
  EXPECT_EQ(shown("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");  // above U+10FFFF
  EXPECT_EQ(shown("0123456789abcdef\xF0\x9F\x9A"), "0123456789abcdef\uFFFD");
}

TEST(Utf8, LeavesACharacterCutOffAtTheEndToTheCaller) {
  std::string out;
  EXPECT_EQ(append_utf8(out, "x\xE2\x82"), 2U);
  EXPECT_EQ(out, "x");
  EXPECT_EQ(append_utf8(out, "\xE2\x82\xAC"), 0U);
  EXPECT_EQ(out, "x\u20AC");
}

TEST(LastUpdate, IsWhatATerminalLeavesOfAProgressBar) {
  EXPECT_EQ(last_update("plain"), "plain");
  EXPECT_EQ(last_update("line end of two bytes\r"), "line end of two bytes");
  EXPECT_EQ(last_update("\r 0%\r 50%\r100%"), "100%");
  EXPECT_EQ(last_update("10%\r\r"), "10%");
  EXPECT_EQ(last_update("\r\r"), "");
  EXPECT_EQ(last_update(""), "");
}

TEST(LastLines, GivesTheNewestLinesOldestFirst) {
  EXPECT_EQ(last_lines("a\nb\nc\n", 2), (std::vector<std::string>{"b", "c"}));
  EXPECT_EQ(last_lines("a\n\nc", 3), (std::vector<std::string>{"a", "", "c"}));
  EXPECT_EQ(last_lines("bar 1%\rbar 2%\n\xFF", 5), (std::vector<std::string>{"bar 2%", "\uFFFD"}));
  EXPECT_TRUE(last_lines("", 3).empty());
}

}  // namespace
}  // namespace ddprun::agent
