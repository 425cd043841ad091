#include "agent/standstill/standstill_watch.h"

#include <gtest/gtest.h>

namespace ddprun::agent {
namespace {

using rendezvous::Verdict;
using rendezvous::VerdictKind;
using Belief = StandstillWatch::Belief;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A node of two workers, looked at every five seconds.
class Node {
 public:
  Node() { watch.attempt_begins(workers.size(), now); }

  // Both workers do a step every `step` for `length`.
  void train(seconds length, milliseconds step) {
    for (const Time end = now + length; now < end;) {
      for (WorkerSight& worker : workers) {
        worker.steps += static_cast<std::uint64_t>(StandstillWatch::kEvery / step);
        worker.last_step = now + StandstillWatch::kEvery;
      }
      look();
    }
  }
  bool look() {
    now += StandstillWatch::kEvery;
    return watch.looked(workers, now);
  }
  // Returns after how many seconds without a step the watch suspects.
  int quiet_until_suspicion() {
    const Time began = now;
    while (!look())
      if (now > began + std::chrono::hours(1)) return -1;
    return static_cast<int>(std::chrono::round<seconds>(now - began).count());
  }
  bool hears(VerdictKind kind, bool is_certain, const std::string& sentence = "s") {
    return believes(kind, is_certain, sentence) == Belief::kNew;
  }
  Belief believes(VerdictKind kind, bool is_certain, const std::string& sentence = "s") {
    return watch.verdict_came({.kind = kind, .is_certain = is_certain, .sentence = sentence}, now);
  }

  Time now = Time{} + std::chrono::hours(1);
  StandstillWatch watch;
  std::vector<WorkerSight> workers{2, {.lives = true, .has_witness = true}};
};

TEST(StandstillWatch, SuspectsTenSecondsAfterTheLastStep) {
  Node node;
  node.train(seconds(60), milliseconds(100));
  EXPECT_EQ(node.quiet_until_suspicion(), 10);
}

TEST(StandstillWatch, WaitsForEightLongSteps) {
  Node node;
  node.train(seconds(60), milliseconds(2500));
  EXPECT_EQ(node.quiet_until_suspicion(), 20);
}

TEST(StandstillWatch, SuspectsWhereOneWorkerAloneStepsNoMore) {
  Node node;
  node.train(seconds(20), milliseconds(100));
  bool suspects = false;
  for (int i = 0; i < 2; ++i) {
    node.workers[0].steps += 10;
    node.workers[0].last_step = node.now + StandstillWatch::kEvery;
    suspects = node.look();
  }
  EXPECT_TRUE(suspects);
}

TEST(StandstillWatch, NeedsAWitnessOrSteps) {
  Node node;
  for (WorkerSight& worker : node.workers) worker.has_witness = false;
  EXPECT_EQ(node.quiet_until_suspicion(), -1);
}

TEST(StandstillWatch, DoesNotSuspectWorkersThatHaveEnded) {
  Node node;
  node.train(seconds(20), milliseconds(100));
  for (WorkerSight& worker : node.workers) worker.lives = false;
  EXPECT_EQ(node.quiet_until_suspicion(), -1);
}

TEST(StandstillWatch, TakesCpuTimeForWorkWhereThereAreNoSteps) {
  Node node;
  for (int i = 0; i < 10; ++i) {
    for (WorkerSight& worker : node.workers) worker.cpu += milliseconds(500);
    EXPECT_FALSE(node.look());
  }
  EXPECT_EQ(node.quiet_until_suspicion(), 10);
}

TEST(StandstillWatch, AsksOnceAndThenWaitsForTheVerdict) {
  Node node;
  node.train(seconds(20), milliseconds(100));
  ASSERT_EQ(node.quiet_until_suspicion(), 10);
  for (Time end = node.now + StandstillWatch::kVerdictLimit - seconds(5); node.now < end;)
    EXPECT_FALSE(node.look());
  // The host that was asked may be gone.
  EXPECT_TRUE(node.look());
}

TEST(StandstillWatch, GivesWhateverWorksAsLongAgain) {
  Node node;
  node.train(seconds(20), milliseconds(100));
  ASSERT_EQ(node.quiet_until_suspicion(), 10);
  EXPECT_FALSE(node.hears(VerdictKind::kBusy, true));
  EXPECT_EQ(node.quiet_until_suspicion(), 10);
  EXPECT_FALSE(node.hears(VerdictKind::kBusy, true));
  EXPECT_EQ(node.quiet_until_suspicion(), 20);
}

TEST(StandstillWatch, TellsACertainAlarmOnce) {
  Node node;
  node.train(seconds(20), milliseconds(100));
  node.quiet_until_suspicion();
  EXPECT_TRUE(node.hears(VerdictKind::kNothingDone, true));
  EXPECT_FALSE(node.hears(VerdictKind::kNothingDone, true));
  EXPECT_TRUE(node.hears(VerdictKind::kNothingDone, true, "another rank"));
}

TEST(StandstillWatch, TellsAnUncertainAlarmWhenItIsSeenTwice) {
  Node node;
  node.train(seconds(20), milliseconds(100));
  node.quiet_until_suspicion();
  EXPECT_FALSE(node.hears(VerdictKind::kAllWait, false));
  EXPECT_FALSE(node.hears(VerdictKind::kAllWait, false, "another call"));
  EXPECT_TRUE(node.hears(VerdictKind::kAllWait, false, "another call"));
}

TEST(StandstillWatch, AsksForASecondLookUntilPeopleHaveHeard) {
  Node node;
  node.train(seconds(20), milliseconds(100));
  node.quiet_until_suspicion();
  EXPECT_EQ(node.believes(VerdictKind::kAllWait, false), Belief::kLookAgain);
  EXPECT_EQ(node.believes(VerdictKind::kAllWait, false), Belief::kNew);
  EXPECT_EQ(node.believes(VerdictKind::kAllWait, false), Belief::kKnown);
  EXPECT_EQ(node.believes(VerdictKind::kAllWait, true), Belief::kKnown);
}

TEST(StandstillWatch, BelievesASecondVerdictOnAJobWithoutSteps) {
  Node node;
  ASSERT_EQ(node.quiet_until_suspicion(), 10);
  EXPECT_EQ(node.believes(VerdictKind::kNothingDone, true, "#3"), Belief::kLookAgain);
  EXPECT_EQ(node.believes(VerdictKind::kNothingDone, true, "#4"), Belief::kLookAgain);
  EXPECT_EQ(node.believes(VerdictKind::kNothingDone, true, "#4"), Belief::kNew);
}

TEST(StandstillWatch, ActsOnWhatIsSeenTwiceAndThenHasMorePatience) {
  Node node;
  const Verdict verdict{
      .kind = VerdictKind::kNothingDone, .is_certain = true, .rank_to_end = 1, .sentence = "s"};
  for (const int patience : {10, 60, 120}) {
    node.watch.attempt_begins(node.workers.size(), node.now);
    node.train(seconds(20), milliseconds(100));
    const Time began = node.now;
    node.quiet_until_suspicion();
    node.watch.verdict_came(verdict, node.now);
    EXPECT_FALSE(node.watch.may_act(verdict, node.now));
    node.watch.verdict_came(verdict, node.now);
    while (!node.watch.may_act(verdict, node.now)) node.look();
    EXPECT_EQ(node.now - began, seconds(patience));
  }
}

TEST(StandstillWatch, DoesNotActWhileAnotherWorkerMoves) {
  Node node;
  const Verdict verdict{
      .kind = VerdictKind::kNothingDone, .is_certain = true, .rank_to_end = 1, .sentence = "s"};
  node.train(seconds(20), milliseconds(100));
  for (int i = 0; i < 6; ++i) {
    node.workers[0].steps += 1;
    node.workers[0].last_step = node.now + StandstillWatch::kEvery;
    node.look();
    node.watch.verdict_came(verdict, node.now);
    EXPECT_FALSE(node.watch.may_act(verdict, node.now));
  }
}

TEST(StandstillWatch, LooksAtEachWorkerThoughAnotherIsAlwaysQuiet) {
  Node node;
  for (int i = 0; i < 40; ++i) {
    node.workers[0].steps += 10;
    node.workers[0].last_step = node.now + StandstillWatch::kEvery;
    if (node.look()) node.hears(VerdictKind::kNone, false);
  }
  EXPECT_LE(node.quiet_until_suspicion(), 15);
}

TEST(StandstillWatch, DoesNotGoOnByTheEndOfItsWorkers) {
  Node node;
  node.train(seconds(20), milliseconds(100));
  node.quiet_until_suspicion();
  ASSERT_TRUE(node.hears(VerdictKind::kMissing, true));
  for (WorkerSight& worker : node.workers) worker.lives = false;
  node.look();
  EXPECT_EQ(node.watch.went_on_after(), std::nullopt);
}

TEST(StandstillWatch, DoesNotGoOnWhereItDidNotStand) {
  Node node;
  node.train(seconds(20), milliseconds(100));
  ASSERT_TRUE(node.hears(VerdictKind::kMissing, true));
  node.train(seconds(20), milliseconds(100));
  EXPECT_EQ(node.watch.went_on_after(), std::nullopt);
}

TEST(StandstillWatch, BelievesThatAllDoNothingAfterAMinute) {
  Node node;
  node.train(seconds(20), milliseconds(100));
  bool told = false;
  int heard = 0;
  for (const Time end = node.now + seconds(60); node.now + seconds(5) < end; ++heard) {
    node.look();
    told = told || node.hears(VerdictKind::kNothingDone, false);
  }
  EXPECT_GT(heard, 5);
  EXPECT_FALSE(told);
  node.look();
  EXPECT_TRUE(node.hears(VerdictKind::kNothingDone, false));
}

TEST(StandstillWatch, LearnsFromAnAlarmThatWasNone) {
  Node node;
  node.train(seconds(20), milliseconds(100));
  node.quiet_until_suspicion();
  ASSERT_TRUE(node.hears(VerdictKind::kNothingDone, true));
  for (int i = 0; i < 6; ++i) node.look();
  EXPECT_EQ(node.watch.went_on_after(), std::nullopt);
  node.train(seconds(20), milliseconds(100));
  EXPECT_EQ(node.watch.went_on_after(), seconds(45));  // the last step that was seen
  EXPECT_EQ(node.watch.went_on_after(), std::nullopt);
  EXPECT_EQ(node.quiet_until_suspicion(), 60);
}

TEST(StandstillWatch, SaysNothingOfAPhaseThatNobodyHeardOf) {
  Node node;
  node.train(seconds(20), milliseconds(100));
  node.quiet_until_suspicion();
  node.hears(VerdictKind::kBusy, true);
  node.train(seconds(20), milliseconds(100));
  EXPECT_EQ(node.watch.went_on_after(), std::nullopt);
  EXPECT_EQ(node.quiet_until_suspicion(), 10);
}

}  // namespace
}  // namespace ddprun::agent
