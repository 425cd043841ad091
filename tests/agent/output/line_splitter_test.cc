// From a stream's bytes to lines. Time is moved by hand.
#include "agent/output/line_splitter.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "tests/agent/output/line_times.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

// Shows a stream alone, each piece as "(text)", "(text..." or "...text)".
std::string pieces(LineSplitter& lines, std::string_view bytes, Time now = kStart) {
  std::string out;
  while (const auto piece = lines.next(bytes, now)) {
    out += piece->begins ? "(" : "...";
    out += piece->text;
    out += piece->ends ? ")" : "...";
  }
  return out;
}

std::string rest(LineSplitter& lines) {
  const auto piece = lines.finish();
  return piece ? std::string(piece->text) : "none";
}

TEST(LineSplitter, CutsAtEachNewline) {
  LineSplitter lines;
  EXPECT_EQ(pieces(lines, "a\n\nb\n"), "(a)()(b)");
  EXPECT_EQ(rest(lines), "none");
}

TEST(LineSplitter, HoldsAnUnfinishedLineBackUntilItsEnd) {
  LineSplitter lines;
  EXPECT_EQ(pieces(lines, "abc"), "");
  EXPECT_EQ(pieces(lines, "def\ngh"), "(abcdef)");
  EXPECT_EQ(rest(lines), "gh");
  EXPECT_EQ(rest(lines), "none");
}

TEST(LineSplitter, GivesTheSameLinesWhateverTheReadsAre) {
  const std::string text = "one\ntwo\r\n\nx\ry\nthree";
  LineSplitter whole;
  EXPECT_EQ(pieces(whole, text), "(one)(two)()(y)");
  LineSplitter bytes;
  std::string got;
  // The update x is shown when its end is seen, since it is the first.
  for (const char byte : text) got += pieces(bytes, std::string_view(&byte, 1));
  EXPECT_EQ(got, "(one)(two)()(y)");
  EXPECT_EQ(rest(bytes), "three");
}

TEST(LineSplitter, ShowsAProgressBarOnceASecondAndItsLastState) {
  LineSplitter lines;
  EXPECT_EQ(pieces(lines, "\r 0%", kStart), "");
  EXPECT_EQ(pieces(lines, "\r 1%", kStart), "( 0%)");
  EXPECT_EQ(pieces(lines, "\r 2%", kStart + 500ms), "");
  EXPECT_EQ(pieces(lines, "\r 3%\r 4%", kStart + kUpdateEvery), "( 3%)");
  EXPECT_EQ(pieces(lines, "\r 5%", kStart + kUpdateEvery + 1ms), "");
  EXPECT_EQ(pieces(lines, "\n", kStart + kUpdateEvery + 2ms), "( 5%)");
}

TEST(LineSplitter, ShowsTheLastStateOfABarOnlyOnce) {
  LineSplitter lines;
  EXPECT_EQ(pieces(lines, "done\r"), "(done)");
  EXPECT_EQ(pieces(lines, "\nnext\n\n"), "(next)()");
}

TEST(LineSplitter, KeepsOfAnEndlessProgressBarOnlyItsLastState) {
  LineSplitter lines;
  pieces(lines, "x\r");
  for (int update = 0; update < 100'000; ++update)
    ASSERT_EQ(pieces(lines, "some state of the bar\r"), "");
  EXPECT_FALSE(lines.in_long_line());
  EXPECT_EQ(pieces(lines, "\n"), "(some state of the bar)");
}

TEST(LineSplitter, PassesALongLineOnInParts) {
  LineSplitter lines;
  const std::string held(kHeldLineBytes - 1, 'x');
  EXPECT_EQ(pieces(lines, held), "");
  EXPECT_FALSE(lines.in_long_line());
  EXPECT_EQ(pieces(lines, "y"), "(" + held + "y...");
  EXPECT_TRUE(lines.in_long_line());
  EXPECT_EQ(pieces(lines, "zz"), "...zz...");
  EXPECT_EQ(pieces(lines, "\nnext\n"), "...)(next)");
  EXPECT_FALSE(lines.in_long_line());
}

TEST(LineSplitter, BeginsALineAnewAfterAnInterruption) {
  LineSplitter lines;
  pieces(lines, std::string(kHeldLineBytes, 'x'));
  lines.interrupt();
  EXPECT_EQ(pieces(lines, "more"), "(more...");
  EXPECT_EQ(pieces(lines, "end\n"), "...end)");
  lines.interrupt();  // of no long line
  EXPECT_EQ(pieces(lines, std::string(kHeldLineBytes, 'x')).front(), '(');
  EXPECT_EQ(rest(lines), "");
  EXPECT_FALSE(lines.in_long_line());
}

}  // namespace
}  // namespace ddprun::agent
