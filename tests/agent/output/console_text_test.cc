// What of a worker's bytes is shown: prefixes, UTF-8, progress bars, the end of a stderr.
#include "agent/output/console_text.h"

#include <gtest/gtest.h>

#include <string>

#include "agent/output/line_prefix.h"
#include "agent/output/stderr_tail.h"

namespace ddprun::agent {
namespace {

using namespace std::string_literals;

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

TEST(StderrTail, KeepsTheLastLinesOfWhateverComes) {
  StderrTail tail;
  for (int line = 0; line < 100'000; ++line) tail.take(std::to_string(line) + "\n");
  const auto lines = tail.lines();
  ASSERT_EQ(lines.size(), kTailLines);
  EXPECT_EQ(lines.front(), "99980");
  EXPECT_EQ(lines.back(), "99999");
}

TEST(StderrTail, IsBoundedForOneEndlessLine) {
  StderrTail tail;
  for (int piece = 0; piece < 100; ++piece) tail.take(std::string(kTailBytes - 1, 'x'));
  tail.take(std::string(3 * kTailBytes, 'x') + "end");
  ASSERT_EQ(tail.lines().size(), 1U);
  EXPECT_EQ(tail.lines()[0].size(), kTailBytes);
  EXPECT_TRUE(tail.lines()[0].ends_with("xend"));
}

}  // namespace
}  // namespace ddprun::agent
