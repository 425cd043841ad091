// From a stream's bytes to the console's lines: cutting, prefixes, filters, folding, whose turn it
// is. Pure; time is moved by hand.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "agent/output/console_turn.h"
#include "agent/output/line_folder.h"
#include "agent/output/line_formatter.h"
#include "agent/output/line_splitter.h"
#include "agent/output/raw_lines.h"
#include "proto/number_ranges.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr Time kStart{1h};

// What a stream alone looks like, each piece as "(text)", "(text..." or "...text)".
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

TEST(RawLines, PassesWholeLinesOnAtOnceAndTheRestAfterAShortWait) {
  RawLines lines;
  EXPECT_EQ(lines.look_again_at(), Time::max());
  EXPECT_EQ(lines.take("a\nb\r\nc", kStart), "a\nb\r\n");
  EXPECT_EQ(lines.look_again_at(), kStart + kPartialLineWait);
  EXPECT_EQ(lines.take("d", kStart + 99ms), "");
  EXPECT_EQ(lines.time_passed(kStart + 99ms), "");
  EXPECT_EQ(lines.time_passed(kStart + kPartialLineWait), "cd");
  EXPECT_EQ(lines.look_again_at(), Time::max());
  EXPECT_EQ(lines.take("\n", kStart + 1s), "\n");
  EXPECT_EQ(lines.take("end", kStart + 1s), "");
  EXPECT_EQ(lines.finish(), "end");
}

TEST(RawLines, PassesEveryByteOfALongLineOnAndKnowsWhereItEnds) {
  RawLines lines;
  EXPECT_EQ(lines.take("a", kStart), "");
  EXPECT_EQ(lines.take(std::string(kHeldLineBytes, 'x'), kStart).size(), kHeldLineBytes + 1);
  EXPECT_TRUE(lines.in_long_line());
  EXPECT_EQ(lines.take("yy", kStart), "yy");
  EXPECT_EQ(lines.take("z\nnext", kStart), "z\n");
  EXPECT_FALSE(lines.in_long_line());
  EXPECT_EQ(lines.finish(), "next");
}

TEST(ConsoleTurn, IsForOneStreamUntilItsLineEndsOrItStalls) {
  ConsoleTurn turn;
  const int a = 0;
  const int b = 0;
  EXPECT_TRUE(turn.is_free_for(&a));
  EXPECT_FALSE(turn.release(&a));
  turn.hold(&a, kStart);
  EXPECT_TRUE(turn.is_held_by(&a));
  EXPECT_FALSE(turn.is_free_for(&b));
  EXPECT_FALSE(turn.release(&b));
  EXPECT_EQ(turn.stalled_at(), kStart + kTurnStall);
  turn.hold(&a, kStart + 500ms);
  EXPECT_EQ(turn.stalled_at(), kStart + 500ms + kTurnStall);
  EXPECT_TRUE(turn.release(&a));
  EXPECT_TRUE(turn.is_free_for(&b));
  EXPECT_EQ(turn.stalled_at(), Time::max());
}

const LineSource kZero{.rank = 0, .prefix = "[0]:"};
const LineSource kOne{.rank = 1, .prefix = "[1]:"};
const LineSource kTwo{.rank = 2, .prefix = "[2]:"};

void say(LineFormatter& lines, const LineSource& source, std::string_view line, Time now = kStart) {
  lines.show(source, {.text = line}, now);
}

TEST(LineFormatter, PutsThePrefixBeforeEachLine) {
  LineFormatter lines({});
  say(lines, kZero, "a");
  say(lines, kOne, "");
  say(lines, kOne, "\xFF");
  EXPECT_EQ(lines.take_text(), "[0]:a\n[1]:\n[1]:\uFFFD\n");
  EXPECT_EQ(lines.take_text(), "");
  EXPECT_EQ(lines.take_filtered(), "");
}

TEST(LineFormatter, DuplicatesTheLinesThatContainOneOfTheFilters) {
  LineFormatter lines({.filters{{"apple", "pear"}}});
  for (const char* line : {"an apple", "a plum", "pears\xFF"}) say(lines, kOne, line);
  EXPECT_EQ(lines.take_filtered(), "[1]:an apple\n[1]:pears\xFF\n");
  LineFormatter all({.filters{{""}}});
  say(all, kZero, "x");
  say(all, kZero, "");
  EXPECT_EQ(all.take_filtered(), "[0]:x\n[0]:\n");
  LineFormatter none({.filters{std::vector<std::string>()}});
  say(none, kZero, "x");
  EXPECT_EQ(none.take_filtered(), "");
}

TEST(LineFormatter, JoinsThePartsOfALongLine) {
  LineFormatter lines({.filters{{"apple"}}});
  lines.show(kZero, {.text = "apple \xE2", .ends = false}, kStart);
  EXPECT_EQ(lines.take_text(), "[0]:apple ");
  lines.show(kZero, {.text = "\x82", .begins = false, .ends = false}, kStart);
  lines.show(kZero, {.text = "\xAC!", .begins = false, .ends = true}, kStart);
  EXPECT_EQ(lines.take_text(), "\u20AC!\n");
  EXPECT_EQ(lines.take_filtered(), "[0]:apple \u20AC!\n");
  lines.show(kZero, {.text = "long\xE2", .ends = false}, kStart);
  lines.interrupt();
  EXPECT_EQ(lines.take_text(), "[0]:long\uFFFD\n");
  EXPECT_EQ(lines.take_filtered(), "");
}

LineFormatter folding(std::size_t streams = 3) {
  return LineFormatter({.fold = true, .streams = streams});
}

TEST(Fold, ShowsWhatAllRanksSayOnceAndAtOnce) {
  LineFormatter lines = folding();
  say(lines, kTwo, "epoch 1");
  say(lines, kZero, "epoch 1", kStart + 5ms);
  EXPECT_EQ(lines.take_text(), "");
  say(lines, kOne, "epoch 1", kStart + 9ms);
  EXPECT_EQ(lines.take_text(), "[ranks 0-2] epoch 1\n");
  EXPECT_EQ(lines.look_again_at(), Time::max());
}

TEST(Fold, ShowsALineOfOneRankWithItsPrefixAfterTheWindow) {
  LineFormatter lines = folding();
  say(lines, kOne, "alone");
  EXPECT_EQ(lines.look_again_at(), kStart + kFoldWindow);
  lines.time_passed(kStart + kFoldWindow - 1ms);
  EXPECT_EQ(lines.take_text(), "");
  lines.time_passed(kStart + kFoldWindow);
  EXPECT_EQ(lines.take_text(), "[1]:alone\n");
}

TEST(Fold, KeepsTheOrderOfEachRanksLines) {
  LineFormatter lines = folding();
  say(lines, kZero, "a");
  say(lines, kZero, "b");
  say(lines, kOne, "b");
  say(lines, kOne, "a");  // after its b: not the a of rank 0
  say(lines, kTwo, "b");
  lines.time_passed(Time::max());
  EXPECT_EQ(lines.take_text(), "[0]:a\n[ranks 0-2] b\n[1]:a\n");
}

TEST(Fold, FoldsRepeatedLinesOneByOne) {
  LineFormatter lines = folding(2);
  for (int turn = 0; turn < 3; ++turn) say(lines, kZero, "again");
  for (int turn = 0; turn < 2; ++turn) say(lines, kOne, "again");
  lines.time_passed(Time::max());
  EXPECT_EQ(lines.take_text(), "[ranks 0-1] again\n[ranks 0-1] again\n[0]:again\n");
}

TEST(Fold, FiltersSeeEachRanksLine) {
  LineFormatter lines({.filters{{"x"}}, .fold = true, .streams = 2});
  say(lines, kZero, "x");
  say(lines, kOne, "x");
  EXPECT_EQ(lines.take_text(), "[ranks 0-1] x\n");
  EXPECT_EQ(lines.take_filtered(), "[0]:x\n[1]:x\n");
}

TEST(Fold, ShowsEarlierLinesBeforeALongOne) {
  LineFormatter lines = folding();
  say(lines, kZero, "first");
  lines.show(kZero, {.text = "long", .ends = false}, kStart);
  EXPECT_EQ(lines.take_text(), "[0]:first\n[0]:long");
}

TEST(Fold, HoldsBackABoundedAmountOfText) {
  LineFormatter lines = folding();
  const std::string line(1000, 'x');
  std::size_t shown = 0;
  for (std::size_t count = 0; count < 2 * kFoldBytes / line.size(); ++count) {
    say(lines, kZero, line + std::to_string(count));
    shown += lines.take_text().size();
  }
  EXPECT_GE(shown, kFoldBytes / 2);
}

TEST(Fold, HoldsBackABoundedNumberOfEmptyLines) {
  LineFormatter lines = folding();
  constexpr std::size_t kMost = kFoldBytes / kFoldLineBytes;
  std::size_t shown = 0;
  for (std::size_t count = 0; count < 2 * kMost; ++count) {
    say(lines, kZero, "");
    shown += lines.take_text().size();
  }
  EXPECT_EQ(shown, kMost * std::string("[0]:\n").size());
}

TEST(Fold, NamesRanksByRanges) {
  EXPECT_EQ(number_ranges({0, 1, 2, 3}), "0-3");
  EXPECT_EQ(number_ranges({0, 2, 3, 7}), "0,2-3,7");
  EXPECT_EQ(number_ranges({}), "");
}

}  // namespace
}  // namespace ddprun::agent
