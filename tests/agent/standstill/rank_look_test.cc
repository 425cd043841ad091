#include "agent/standstill/rank_look.h"

#include <gtest/gtest.h>

namespace ddprun::agent {
namespace {

using rendezvous::Activity;
using rendezvous::GroupPosition;
using std::chrono::milliseconds;
using std::chrono::seconds;

GroupPosition waits_in(std::int64_t number, const std::string& group = "0") {
  return {.name = group,
          .enqueued = number,
          .completed = number - 1,
          .number = number,
          .operation = "all_reduce"};
}

RankLook still() {
  return {.has_witness = true,
          .steps = 50,
          .process = {.state = 'S', .cpu = seconds(100), .bytes = 1'000'000},
          .answer = WitnessAnswer{.stack = {{.function = "wait", .file = "/usr/lib/python3/c.py"},
                                            {true, "train", "/home/me/hang.py", 18}}}};
}

rendezvous::RankEvidence evidence(const RankLook& first, const RankLook& second) {
  return evidence_of(first, second, seconds(5));
}

TEST(RankLook, IsIdleWhereNothingChanges) {
  const auto seen = evidence(still(), still());
  EXPECT_EQ(seen.activity, Activity::kIdle);
  EXPECT_EQ(seen.place, "train (hang.py:18)");
  EXPECT_EQ(seen.steps, 50);
}

TEST(RankLook, IsBusyWithAnythingThatChanges) {
  RankLook computes = still();
  computes.process.cpu += milliseconds(4900);
  EXPECT_EQ(evidence(still(), computes).activity, Activity::kBusy);
  EXPECT_EQ(evidence(still(), computes).detail, "uses 0.98 CPUs");
  RankLook writes = still();
  writes.process.bytes += 10'000'000;
  EXPECT_EQ(evidence(still(), writes).detail, "reads and writes 2.0 MB/s");
  RankLook swaps = still();
  swaps.process.major_faults += 1;
  EXPECT_EQ(evidence(still(), swaps).detail, "reads memory from a disk");
  RankLook receives = still();
  receives.process.switches += 1000;
  EXPECT_EQ(evidence(still(), receives).detail, "its calls go on");
  RankLook moves = still();
  moves.answer->stack.back().line = 19;
  EXPECT_EQ(evidence(still(), moves).detail, "its stack moves");
  RankLook steps = still();
  steps.steps += 1;
  EXPECT_EQ(evidence(still(), steps).activity, Activity::kBusy);
}

TEST(RankLook, IsIdleThoughAThreadLooksNowAndThen) {
  RankLook looks = still();
  looks.process.cpu += milliseconds(100);
  looks.process.bytes += 1000;
  looks.process.switches += 50;
  EXPECT_EQ(evidence(still(), looks).activity, Activity::kIdle);
}

TEST(RankLook, TellsWhatTheKernelSays) {
  RankLook stopped = still();
  stopped.process.state = 'T';
  EXPECT_EQ(evidence(still(), stopped).activity, Activity::kStopped);
  RankLook traced = still();
  traced.process.state = 't';
  EXPECT_EQ(evidence(still(), traced).activity, Activity::kTraced);
  RankLook debugged = still();
  debugged.answer->stack.insert(debugged.answer->stack.begin(),
                                {false, "cmdloop", "/lib/pdb.py", 3});
  EXPECT_EQ(evidence(debugged, debugged).activity, Activity::kTraced);
  RankLook frozen = still();
  frozen.process.wait_channel = "do_freezer_trap";
  EXPECT_EQ(evidence(still(), frozen).activity, Activity::kFrozen);
  RankLook stuck = still();
  stuck.process.state = 'D';
  stuck.process.wait_channel = "nfs_wait";
  EXPECT_EQ(evidence(stuck, stuck).activity, Activity::kInKernel);
  EXPECT_EQ(evidence(stuck, stuck).detail, "nfs_wait");
  EXPECT_EQ(evidence(still(), stuck).activity, Activity::kIdle);  // a moment of it is nothing
}

TEST(RankLook, IsSilentWithAWitnessThatDoesNotAnswer) {
  RankLook silent = still();
  silent.answer.reset();
  EXPECT_EQ(evidence(silent, silent).activity, Activity::kSilent);
  EXPECT_EQ(evidence(still(), silent).activity, Activity::kUnknown);  // a busy host
  silent.has_witness = false;
  EXPECT_EQ(evidence(silent, silent).activity, Activity::kUnknown);
  silent.has_ended_well = true;
  EXPECT_EQ(evidence(silent, silent).activity, Activity::kEnded);
}

TEST(RankLook, OnTheEngineWaitsInACallThatHasBegun) {
  RankLook look = still();
  look.has_witness = false;
  look.answer.reset();
  look.calls_begun = look.calls_done = 7;
  EXPECT_EQ(evidence(look, look).activity, Activity::kIdle);
  look.calls_begun = 8;
  EXPECT_EQ(evidence(look, look).activity, Activity::kUnknown);
  EXPECT_EQ(evidence(look, look).detail, "a collective of the engine");
  RankLook looks_around = look;
  looks_around.process.cpu += milliseconds(1000);
  looks_around.process.switches += 1000;
  EXPECT_EQ(evidence(look, looks_around).activity, Activity::kUnknown);
  looks_around.process.cpu += milliseconds(4000);
  EXPECT_EQ(evidence(look, looks_around).activity, Activity::kBusy);
  RankLook goes_on = look;
  goes_on.calls_begun = 9;
  goes_on.calls_done = 8;
  EXPECT_EQ(evidence(look, goes_on).detail, "its calls go on");
}

TEST(RankLook, IsFrozenInThePlacesOfAllKernels) {
  for (const char* const place : {"do_freezer_trap", "__refrigerator", "get_signal"}) {
    RankLook frozen = still();
    frozen.process.wait_channel = place;
    EXPECT_EQ(evidence(still(), frozen).activity, Activity::kFrozen) << place;
  }
  RankLook stopped = still();
  stopped.process.state = 'T';
  stopped.process.wait_channel = "get_signal";
  EXPECT_EQ(evidence(still(), stopped).activity, Activity::kStopped);
}

TEST(RankLook, WaitsInACallThatWasThereAtBothLooks) {
  RankLook first = still();
  RankLook second = still();
  first.answer->groups = {waits_in(51)};
  second.answer->groups = {waits_in(51)};
  EXPECT_TRUE(evidence(first, second).groups.at(0).is_waiting());
  second.answer->groups = {waits_in(52)};
  EXPECT_FALSE(evidence(first, second).groups.at(0).is_waiting());
  first.answer->groups = {};
  EXPECT_FALSE(evidence(first, second).groups.at(0).is_waiting());
}

TEST(RankLook, WaitsUnseenInsideOfTorch) {
  RankLook look = still();
  look.answer->inside = "new_group";
  EXPECT_EQ(evidence(look, look).activity, Activity::kUnknown);
  EXPECT_EQ(evidence(look, look).detail, "new_group");
  look.answer->groups = {waits_in(51)};
  EXPECT_EQ(evidence(look, look).activity, Activity::kIdle);
}

TEST(RankLook, KeepsTheGroupsThatMatter) {
  RankLook look = still();
  for (int i = 0; i < 10; ++i)
    look.answer->groups.push_back({.name = std::to_string(i), .enqueued = i, .completed = i});
  look.answer->groups.push_back(waits_in(1, "last"));
  const auto groups = evidence(look, look).groups;
  ASSERT_EQ(groups.size(), rendezvous::kMostGroups);
  EXPECT_EQ(groups.front().name, "last");
  EXPECT_EQ(groups.back().name, "7");
}

TEST(WitnessAnswer, ReadsStackAndGroups) {
  const auto answer = parse_witness_answer(
      "# frame\town\ninside\tbarrier\ninside\tall\n"
      "frame\t-\twait\t/usr/lib/python3/c.py\t7\nframe\town\ttrain\t/home/me/hang.py\t18\n"
      "group\t0\t*\t51\t50\t51\tall_reduce\t3x4\ngroup\t2\t0,3\t7\t7\t7\tbarrier\t\nend\n");
  ASSERT_TRUE(answer);
  EXPECT_EQ(place_in(answer->stack), "train (hang.py:18)");
  EXPECT_EQ(answer->inside, "all");
  ASSERT_EQ(answer->groups.size(), 2U);
  EXPECT_EQ(answer->groups[0].operation, "all_reduce");
  EXPECT_EQ(answer->groups[0].shapes, "3x4");
  EXPECT_TRUE(answer->groups[0].is_waiting());
  EXPECT_EQ(answer->groups[1].ranks, (std::vector{0, 3}));
  EXPECT_FALSE(answer->groups[1].is_waiting());
}

TEST(WitnessAnswer, IsNoneBeforeItsEnd) {
  EXPECT_FALSE(parse_witness_answer(""));
  EXPECT_FALSE(parse_witness_answer("frame\t-\twait\t/c.py\t7\n"));
}

TEST(WitnessAnswer, BoundsWhatAWorkerWrites) {
  const std::string name(10'000, 'x');
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "frame\town\t" + name + "\t" + name + "\tx\n";
  for (int i = 0; i < 2000; ++i) text += "group\t" + name + "\t1,y,,3\t-\t\t\n";
  const auto answer = parse_witness_answer(text + "what\t\nend");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->stack.size(), 64U);
  EXPECT_EQ(answer->stack[0].function.size(), rendezvous::kMostEvidenceText);
  EXPECT_EQ(answer->stack[0].line, 0);
  EXPECT_EQ(answer->groups.size(), 1024U);
  EXPECT_EQ(answer->groups[0].ranks, (std::vector{1, 0, 0, 3}));
}

TEST(WitnessAnswer, NamesTheInnermostLineWithoutOneOfTheUser) {
  EXPECT_EQ(place_in({}), "");
  EXPECT_EQ(place_in({{false, "read", "/usr/lib/socket.py", 3}}), "read (socket.py:3)");
}

}  // namespace
}  // namespace ddprun::agent
