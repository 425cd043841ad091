// Runs tests/rendezvous/standstills/*.txt through judge(). A line has the evidence of all ranks,
// and prints the verdict.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <sstream>

#include "base/number_ranges.h"
#include "rendezvous/core/standstill.h"
#include "tests/support/script.h"

namespace ddprun::rendezvous {
namespace {

using support::Command;

Activity activity_named(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(Activity::kEnded); ++i)
    if (name_of(static_cast<Activity>(i)) == name) return static_cast<Activity>(i);
  ADD_FAILURE() << "no activity " << name;
  return Activity::kUnknown;
}

// '~' is an underscore.
std::string with_blanks(std::string text) {
  std::ranges::replace(text, '_', ' ');
  std::ranges::replace(text, '~', '_');
  return text;
}

// "group:number:operation:shapes"; with '!' before it, it has not completed. "@0+2" behind it are
// the members.
GroupPosition parse_position(std::string text) {
  GroupPosition position;
  const bool waits = text.starts_with("!");
  if (waits) text.erase(0, 1);
  const auto members = text.find('@');
  std::istringstream ranks(members == std::string::npos ? "" : text.substr(members + 1));
  for (std::string rank; std::getline(ranks, rank, '+');) position.ranks.push_back(std::stoi(rank));
  std::istringstream fields(text.substr(0, members));
  std::string number;
  std::getline(fields, position.name, ':');
  std::getline(fields, number, ':');
  std::getline(fields, position.operation, ':');
  std::getline(fields, position.shapes, ':');
  if (position.name == "p2p") position.name = kPointToPoint;
  if (position.name == kPointToPoint) position.operation = with_blanks(position.operation);
  position.number = position.enqueued = std::stoi(number);
  position.completed = waits ? position.number - 1 : position.number;
  return position;
}

// "idle@host|place|positions|detail|steps", the last ones may be left out.
RankEvidence parse_rank(int rank, const std::string& text) {
  std::istringstream fields(text);
  std::array<std::string, 5> field;
  for (std::string& one : field) std::getline(fields, one, '|');
  const auto host = field[0].find('@');
  RankEvidence evidence{.rank = rank,
                        .hostname = host == std::string::npos ? "" : field[0].substr(host + 1),
                        .activity = activity_named(field[0].substr(0, host)),
                        .detail = with_blanks(field[3]),
                        .place = with_blanks(field[1]),
                        .steps = field[4].empty() ? 0 : std::stoi(field[4])};
  std::istringstream positions(field[2]);
  for (std::string one; std::getline(positions, one, ',');)
    evidence.groups.push_back(parse_position(one));
  return evidence;
}

std::string print(const Verdict& verdict) {
  std::string text = fmt::format(
      "{}{}{}\n", name_of(verdict.kind), verdict.is_certain ? ", certain" : "",
      verdict.may_be_acted_on() ? fmt::format(", ends rank {}", verdict.rank_to_end) : "");
  if (!verdict.ranks.empty())
    text += fmt::format("blames {}\n", number_ranges(verdict.ranks, ", "));
  return verdict.sentence.empty() ? text : text + verdict.sentence + "\n";
}

class StandstillScript : public testing::TestWithParam<std::string> {};

TEST_P(StandstillScript, JudgesAsWritten) {
  support::run_script(std::string(DDPRUN_STANDSTILLS) + "/" + GetParam() + ".txt",
                      [](const Command& command) {
                        std::vector<RankEvidence> evidence;
                        for (const auto& [rank, text] : command.values)
                          if (rank != "world")
                            evidence.push_back(parse_rank(std::stoi(rank), text));
                        return print(judge(evidence, command.number("world", 0)));
                      });
}

INSTANTIATE_TEST_SUITE_P(Scripts, StandstillScript,
                         testing::ValuesIn(support::script_names(DDPRUN_STANDSTILLS)),
                         [](const auto& script) { return script.param; });

class Dice {
 public:
  explicit Dice(unsigned seed) : engine_(seed) {}
  int below(int limit) { return static_cast<int>(engine_() % static_cast<unsigned>(limit)); }

 private:
  std::mt19937 engine_;
};

GroupPosition random_position(Dice& dice, int world) {
  const std::int64_t enqueued = dice.below(4);
  GroupPosition position{
      .name = dice.below(6) == 0 ? std::string(kPointToPoint) : std::to_string(dice.below(3)),
      .enqueued = enqueued,
      .completed = enqueued - dice.below(2),
      .number = enqueued,
      .operation = dice.below(2) == 0 ? "all_reduce" : "all_gather",
      .shapes = dice.below(2) == 0 ? "3" : ""};
  // Members that do not exist, too: a worker writes them.
  for (int i = dice.below(4); i > 0; --i) position.ranks.push_back(dice.below(world + 2) - 1);
  return position;
}

// Whatever workers write, a blamed rank is one of the job. None that works or that a debugger holds
// is ever ended.
TEST(Standstill, NeverEndsARankThatWorks) {
  for (unsigned seed = 0; seed < 20'000; ++seed) {
    Dice dice(seed);
    const int world = 1 + dice.below(6);
    std::vector<RankEvidence> evidence;
    for (int rank = 0; rank < world; ++rank) {
      if (dice.below(8) == 0) continue;
      RankEvidence one{.rank = rank, .activity = static_cast<Activity>(dice.below(9))};
      for (int i = dice.below(3); i > 0; --i) one.groups.push_back(random_position(dice, world));
      evidence.push_back(std::move(one));
    }
    const Verdict verdict = judge(evidence, world);
    for (const int rank : verdict.ranks) {
      ASSERT_TRUE(rank >= 0 && rank < world) << "seed " << seed;
      const auto found = std::ranges::find(evidence, rank, &RankEvidence::rank);
      ASSERT_NE(found, evidence.end()) << "seed " << seed;
    }
    if (verdict.may_be_acted_on()) {
      const auto ended = std::ranges::find(evidence, verdict.rank_to_end, &RankEvidence::rank);
      ASSERT_NE(ended, evidence.end()) << "seed " << seed;
      ASSERT_NE(ended->activity, Activity::kBusy) << "seed " << seed;
      ASSERT_NE(ended->activity, Activity::kTraced) << "seed " << seed;
      ASSERT_NE(ended->activity, Activity::kEnded) << "seed " << seed;
    }
    if (verdict.kind == VerdictKind::kBusy) {
      ASSERT_FALSE(verdict.may_be_acted_on()) << "seed " << seed;
    }
  }
}

TEST(Standstill, GroupsTenThousandRanks) {
  std::vector<RankEvidence> evidence;
  constexpr int kWorld = 10'000;
  for (int rank = 0; rank < kWorld; ++rank) {
    const bool waits = rank != 512;
    evidence.push_back({.rank = rank,
                        .activity = Activity::kIdle,
                        .place = "train (gpt.py:40)",
                        .groups = {{.name = "0",
                                    .enqueued = waits ? 7 : 6,
                                    .completed = 6,
                                    .number = waits ? 7 : 6,
                                    .operation = "all_reduce"}}});
  }
  EXPECT_EQ(judge(evidence, kWorld).sentence,
            "rank 512 does nothing at train (gpt.py:40), last all_reduce #6; ranks 0-511, 513-9999 "
            "wait in all_reduce #7");
}

}  // namespace
}  // namespace ddprun::rendezvous
