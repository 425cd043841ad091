// How tee'd lines look: prefixes, filters, long lines, folding. Time is moved by hand.
#include "agent/output/line_formatter.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "tests/agent/output/line_times.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

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

}  // namespace
}  // namespace ddprun::agent
