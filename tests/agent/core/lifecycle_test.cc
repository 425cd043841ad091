#include "agent/core/lifecycle.h"

#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

#include "agent/core/exit_code.h"
#include "base/signal_name.h"
#include "rendezvous/core/keep_alive.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using rendezvous::Failure;
using rendezvous::JobEnded;
using rendezvous::RoundBroken;
using rendezvous::RoundPublished;
using rendezvous::SessionLost;

constexpr auto kGrace = 30s;
constexpr auto kKillLimit = 10s;
constexpr auto kPatience = 1s;

// Names an action, for comparing whole answers.
std::string name_of(const Action& action) {
  struct Name {
    std::string operator()(const RequestRound&) const { return "join"; }
    std::string operator()(const StartWorkers&) const { return "start"; }
    std::string operator()(const SignalWorkers& it) const { return signal_name(it.signo); }
    std::string operator()(const SignalShells& it) const {
      return "shells:" + signal_name(it.signo);
    }
    std::string operator()(const KillWorkers&) const { return "kill"; }
    std::string operator()(const ReportFailure& it) const {
      return "failure:" + std::to_string(it.failure.rank);
    }
    std::string operator()(const ReportSuccess&) const { return "success"; }
    std::string operator()(const LeaveJob&) const { return "leave"; }
    std::string operator()(const Finish& it) const {
      return "finish:" + std::to_string(it.exit_code);
    }
  };
  return std::visit(Name{}, action);
}

std::vector<std::string> names(const Actions& actions) {
  std::vector<std::string> out;
  for (const Action& action : actions) out.push_back(name_of(action));
  return out;
}

using Names = std::vector<std::string>;

class LifecycleTest : public testing::Test {
 protected:
  // Node rank 1 of two nodes, `workers` workers each: global ranks start at `workers`.
  RoundPublished round(std::int64_t number, int restart_count = 0, int workers = 2) const {
    return {.round = {.number = number,
                      .restart_count = restart_count,
                      .world_size = 2 * workers,
                      .node_count = 2},
            .seat = {.node_rank = 1, .first_rank = workers}};
  }

  void run_round(std::int64_t number) {
    if (cycle.phase() == Phase::kIdle) cycle.start();
    ASSERT_EQ(names(cycle.round_published(round(number), now)), Names{"start"});
  }

  static WorkerExit exit(int local_rank, int code) {
    return {.local_rank = local_rank, .pid = 100, .exit_code = code};
  }

  Time now{};
  Lifecycle cycle{{.grace = kGrace,
                   .shell_patience = kPatience,
                   .kill_limit = kKillLimit,
                   .worker_count = 2,
                   .hostname = "h"}};
};

TEST_F(LifecycleTest, JoinsFirst) {
  EXPECT_EQ(names(cycle.start()), Names{"join"});
  EXPECT_EQ(cycle.phase(), Phase::kJoining);
}

TEST_F(LifecycleTest, ReportsSuccessOnceAllWorkersExitedZeroAndFinishesWhenTheJobDid) {
  run_round(1);
  EXPECT_EQ(names(cycle.worker_exited(exit(0, 0), now)), Names{});
  EXPECT_EQ(names(cycle.worker_exited(exit(1, 0), now)), Names{"success"});
  EXPECT_EQ(cycle.phase(), Phase::kFinished);
  EXPECT_EQ(names(cycle.job_ended(JobEnded{true, {}}, now)), Names{"finish:0"});
  EXPECT_TRUE(cycle.ending().succeeded);
}

TEST_F(LifecycleTest, AFailureIsReportedWithItsGlobalRankAndStopsTheOthers) {
  run_round(1);
  EXPECT_EQ(names(cycle.worker_exited(exit(1, 7), now)), (Names{"failure:3", "SIGTERM"}));
  EXPECT_EQ(cycle.phase(), Phase::kDraining);
  EXPECT_EQ(cycle.look_again_at(), now + kPatience);
}

TEST_F(LifecycleTest, AFailureThatIsComingStopsTheOthersAtOnce) {
  run_round(1);
  EXPECT_EQ(names(cycle.worker_is_ending(exit(0, 0), now)), Names{}) << "it ends well";
  EXPECT_EQ(names(cycle.worker_is_ending(exit(1, -SIGTERM), now)), (Names{"failure:3", "SIGTERM"}));
  EXPECT_EQ(names(cycle.worker_is_ending(exit(0, -SIGTERM), now)), Names{});
  EXPECT_EQ(names(cycle.worker_exited(exit(0, -SIGTERM), now + 50ms)), Names{});
  EXPECT_EQ(names(cycle.worker_exited(exit(1, -SIGTERM), now + 90ms)), Names{});
  ASSERT_EQ(cycle.ended().size(), 2U);
  EXPECT_TRUE(cycle.ended()[0].stopped_by_us);
  EXPECT_FALSE(cycle.ended()[1].stopped_by_us) << "it had failed before we asked";
  EXPECT_EQ(names(cycle.round_broken(RoundBroken{1, {}}, now + 90ms)), Names{"join"});
  run_round(2);
  cycle.worker_exited(exit(0, 1), now + 1s);
  cycle.worker_exited(exit(1, -SIGTERM), now + 1s);
  EXPECT_TRUE(cycle.ended()[1].stopped_by_us) << "that was another round";
}

TEST_F(LifecycleTest, AFailureEndsTheJobWhereARestartIsPointless) {
  run_round(1);
  cycle.restarts_are_pointless("ValueError: bad");
  EXPECT_EQ(names(cycle.worker_exited(exit(1, 1), now)), (Names{"leave", "SIGTERM"}));
  EXPECT_EQ(names(cycle.worker_exited(exit(0, -SIGTERM), now)), Names{"finish:1"});
  ASSERT_TRUE(cycle.ending().cause.has_value());
  EXPECT_EQ(cycle.ending().cause->rank, 3);
  EXPECT_EQ(cycle.ending().cause->words, "ValueError: bad");
  EXPECT_FALSE(cycle.ending().launcher_failed);
}

TEST_F(LifecycleTest, AProgramThatNeverRanHasTheReasonAsItsWords) {
  run_round(1);
  WorkerExit never = exit(1, 1);
  never.exec_errno = ENOENT;
  const Actions actions = cycle.worker_exited(never, now);
  ASSERT_EQ(names(actions), (Names{"failure:3", "SIGTERM"}));
  EXPECT_TRUE(std::get<ReportFailure>(actions[0]).failure.words.starts_with("could not be started"))
      << std::get<ReportFailure>(actions[0]).failure.words;
}

struct EndingCodes : LifecycleTest {
  EndingCodes() {
    cycle = Lifecycle({.grace = kGrace,
                       .worker_count = 3,
                       .exits = {.ends_job = {7}, .restarts = {8}},
                       .hostname = "h"});
    run_round(1);
  }
  static bool ends_job(const Actions& actions) {
    return std::get<ReportFailure>(actions.at(0)).failure.ends_job;
  }
};

TEST_F(EndingCodes, CountAlsoIfAnotherFailureCameBefore) {
  EXPECT_FALSE(ends_job(cycle.worker_exited(exit(0, 1), now)));
  EXPECT_EQ(names(cycle.worker_exited(exit(1, 3), now)), Names{});
  const Actions actions = cycle.worker_exited(exit(2, 7), now);
  EXPECT_EQ(names(actions), Names{"failure:4"});
  EXPECT_TRUE(ends_job(actions));
}

TEST_F(EndingCodes, CountIfARestartWasGranted) {
  cycle.round_broken(RoundBroken{1, {}}, now);
  const Actions actions = cycle.workers_exited({exit(0, 1), exit(1, 7), exit(2, 1)}, now);
  EXPECT_EQ(names(actions), (Names{"failure:3", "join"}));
  EXPECT_TRUE(ends_job(actions));
}

TEST_F(EndingCodes, AreFirstAmongFailuresOfOneMoment) {
  EXPECT_TRUE(ends_job(cycle.workers_exited({exit(0, 1), exit(1, 7)}, now)));
}

TEST_F(EndingCodes, OfAWorkerThatNeverRanAreNoneOfItsOwn) {
  WorkerExit never = exit(0, 7);
  never.exec_errno = ENOENT;
  EXPECT_FALSE(ends_job(cycle.worker_exited(never, now)));
}

TEST_F(EndingCodes, ThatRestartDoSoWhereARestartSeemsPointless) {
  cycle.restarts_are_pointless();
  WorkerExit again = exit(0, 8);
  again.wants_restart = true;
  EXPECT_EQ(names(cycle.worker_is_ending(again, now)), (Names{"failure:2", "SIGTERM"}));
}

TEST_F(LifecycleTest, ANoticeWithoutAnAnswerLeavesWhatIsLeftOfItsDeadline) {
  for (const auto left : {2s, 90s}) {
    Lifecycle told({.grace = kGrace, .shell_patience = kPatience, .hostname = "h"});
    told.start();
    told.round_published(round(1), now);
    EXPECT_EQ(names(told.stop_requested(SIGTERM, now, now + left)), (Names{"leave", "SIGTERM"}));
    EXPECT_EQ(told.kill_at(), now + left);
    EXPECT_EQ(told.ending().noticed, "h");
    EXPECT_EQ(names(told.time_passed(now + kPatience)), Names{"shells:SIGTERM"});
    EXPECT_EQ(names(told.time_passed(now + left)), Names{"kill"});
  }
}

TEST_F(LifecycleTest, ANoticeMakesNoGraceLongerThatHasBegun) {
  run_round(1);
  cycle.worker_exited(exit(0, 1), now);
  cycle.stop_requested(SIGTERM, now + 1s, now + 90s);
  EXPECT_EQ(cycle.kill_at(), now + kGrace);
}

TEST_F(LifecycleTest, ShellsAreAskedOnceMoreWithTheSameSignal) {
  run_round(1);
  cycle.stop_requested(SIGINT, now);
  EXPECT_EQ(names(cycle.time_passed(now + kPatience)), Names{"shells:SIGINT"});
  EXPECT_EQ(cycle.look_again_at(), now + kGrace);
}

TEST_F(LifecycleTest, AGraceShorterThanThePatienceKillsAtItsEnd) {
  Lifecycle hasty({.grace = 0s, .shell_patience = kPatience, .worker_count = 2, .hostname = "h"});
  hasty.start();
  hasty.round_published(round(1), now);
  hasty.stop_requested(SIGTERM, now);
  EXPECT_EQ(hasty.look_again_at(), now);
  EXPECT_EQ(names(hasty.time_passed(now)), Names{"kill"});
}

TEST_F(LifecycleTest, JoinsAgainWhenTheLastWorkerIsGoneAndARestartWasGranted) {
  run_round(1);
  cycle.worker_exited(exit(1, 7), now);
  EXPECT_EQ(names(cycle.round_broken(RoundBroken{1, {}}, now)), Names{});
  EXPECT_EQ(names(cycle.worker_exited(exit(0, -SIGTERM), now)), Names{"join"});
  EXPECT_EQ(cycle.look_again_at(), Time::max());
}

TEST_F(LifecycleTest, WaitsForTheDecisionWhenTheWorkersAreGoneFirst) {
  run_round(1);
  cycle.worker_exited(exit(1, 7), now);
  EXPECT_EQ(names(cycle.worker_exited(exit(0, -SIGTERM), now)), Names{});
  EXPECT_EQ(names(cycle.round_broken(RoundBroken{1, {}}, now)), Names{"join"});
}

TEST_F(LifecycleTest, FinishesWithOneWhenNoRestartIsLeft) {
  run_round(1);
  cycle.worker_exited(exit(1, 7), now);
  cycle.worker_exited(exit(0, -SIGTERM), now);
  EXPECT_EQ(names(cycle.job_ended(JobEnded{false, {.message = "why"}}, now)), Names{"finish:1"});
  EXPECT_EQ(cycle.ending().cause->message, "why");
}

TEST_F(LifecycleTest, WorkersStoppedByUsAreMarkedAndNotReportedAsFailures) {
  run_round(1);
  cycle.worker_exited(exit(1, 7), now);
  EXPECT_EQ(names(cycle.worker_exited(exit(0, -SIGTERM), now)), Names{});
  ASSERT_EQ(cycle.ended().size(), 2U);
  EXPECT_FALSE(cycle.ended()[0].stopped_by_us);
  EXPECT_TRUE(cycle.ended()[1].stopped_by_us);
}

TEST_F(LifecycleTest, WorkersThatDiedTogetherWereNotStoppedByUs) {
  run_round(1);
  EXPECT_EQ(names(cycle.workers_exited({exit(1, 3), exit(0, -SIGSEGV)}, now)),
            (Names{"failure:3"}));
  EXPECT_FALSE(cycle.ended()[0].stopped_by_us);
  EXPECT_FALSE(cycle.ended()[1].stopped_by_us);
}

TEST_F(LifecycleTest, ACrashAfterTheRequestToEndIsNoAnswerToIt) {
  run_round(1);
  cycle.worker_exited(exit(1, 7), now);
  cycle.worker_exited(exit(0, -SIGSEGV), now);
  EXPECT_FALSE(cycle.ended()[1].stopped_by_us);
}

TEST_F(LifecycleTest, ASigkillIsOursOnlyAfterTheGrace) {
  run_round(1);
  cycle.worker_exited(exit(1, 7), now);
  cycle.worker_exited(exit(0, -SIGKILL), now);
  EXPECT_FALSE(cycle.ended()[1].stopped_by_us);
  cycle.round_broken(RoundBroken{1, {}}, now);
  run_round(2);
  cycle.worker_exited(exit(1, 7), now);
  cycle.time_passed(now + kPatience);
  cycle.time_passed(now + kGrace);
  cycle.worker_exited(exit(0, -SIGKILL), now + kGrace);
  EXPECT_TRUE(cycle.ended()[1].stopped_by_us);
}

TEST_F(LifecycleTest, APeersFailureStopsOurWorkersAndCostsNothingElse) {
  run_round(4);
  EXPECT_EQ(names(cycle.round_broken(RoundBroken{4, {}}, now)), Names{"SIGTERM"});
  cycle.worker_exited(exit(0, -SIGTERM), now);
  EXPECT_EQ(names(cycle.worker_exited(exit(1, 0), now)), Names{"join"});
}

TEST_F(LifecycleTest, APeersFailureAfterOurSuccessMakesUsJoinAgain) {
  run_round(1);
  cycle.worker_exited(exit(0, 0), now);
  cycle.worker_exited(exit(1, 0), now);
  EXPECT_EQ(names(cycle.round_broken(RoundBroken{1, {}}, now)), Names{"join"});
}

TEST_F(LifecycleTest, NewsOfAnOlderRoundChangesNothing) {
  run_round(5);
  EXPECT_EQ(names(cycle.round_broken(RoundBroken{4, {}}, now)), Names{});
  EXPECT_EQ(cycle.phase(), Phase::kRunning);
}

TEST_F(LifecycleTest, KillsAtTheDeadlineAndNotBefore) {
  run_round(1);
  cycle.worker_exited(exit(1, 7), now);
  cycle.time_passed(now + kPatience);
  EXPECT_EQ(names(cycle.time_passed(now + kGrace - 1ns)), Names{});
  EXPECT_EQ(names(cycle.time_passed(now + kGrace)), Names{"kill"});
  EXPECT_EQ(cycle.look_again_at(), now + kGrace + kKillLimit);
}

TEST_F(LifecycleTest, LeavesAWorkerThatNotEvenSigkillEndsAndDoesNotRestartBesideIt) {
  run_round(1);
  cycle.worker_exited(exit(1, 7), now);
  cycle.round_broken(RoundBroken{1, {}}, now);
  cycle.time_passed(now + kPatience);
  cycle.time_passed(now + kGrace);
  EXPECT_EQ(names(cycle.time_passed(now + kGrace + kKillLimit)), (Names{"leave", "finish:1"}));
  EXPECT_EQ(cycle.ending().cause->message, "1 of 2 workers on h did not end after SIGKILL");
}

// A virtual machine that is moved is suspended, and its clock goes on.
TEST_F(LifecycleTest, TheGraceDoesNotCountWhileTheHostIsSuspended) {
  run_round(1);
  cycle.worker_exited(exit(1, 7), now);
  now += kPatience;
  EXPECT_EQ(names(cycle.time_passed(now)), Names{"shells:SIGTERM"});
  now += kGrace - kPatience + 65s;
  EXPECT_EQ(names(cycle.time_passed(now)), Names{});
  EXPECT_EQ(cycle.kill_at(), now + kGrace);
  EXPECT_EQ(cycle.look_again_at(), now + kGrace);
  EXPECT_EQ(names(cycle.time_passed(now + kGrace)), Names{"kill"});
}

TEST_F(LifecycleTest, ShellsAreAskedAgainAlsoAfterASuspension) {
  run_round(1);
  cycle.worker_exited(exit(1, 7), now);
  EXPECT_EQ(names(cycle.time_passed(now + kGrace + 65s)), Names{"shells:SIGTERM"});
  EXPECT_EQ(cycle.kill_at(), now + kGrace + 65s + kGrace);
}

TEST_F(LifecycleTest, AKilledWorkerIsNotStuckWhileTheHostIsSuspended) {
  run_round(1);
  cycle.worker_exited(exit(1, 7), now);
  cycle.stop_requested(SIGINT, now);
  EXPECT_EQ(names(cycle.stop_requested(SIGINT, now)), Names{"kill"});
  now += kKillLimit + 65s;
  EXPECT_EQ(names(cycle.time_passed(now)), Names{});
  EXPECT_EQ(cycle.look_again_at(), now + kKillLimit);
  EXPECT_EQ(names(cycle.worker_exited(exit(0, -9), now)), Names{"finish:1"});
}

// The second look comes late, too: each gets no more than was lost.
TEST_F(LifecycleTest, ALateLookMovesALimitByNoMoreThanItIsLate) {
  run_round(1);
  cycle.worker_exited(exit(1, 7), now);
  now += kPatience;
  cycle.time_passed(now);
  now += kGrace - kPatience + rendezvous::kSuspendedFor - 1ns;
  EXPECT_EQ(names(cycle.time_passed(now)), Names{"kill"});
  now += kKillLimit + 300ms;
  EXPECT_EQ(names(cycle.time_passed(now)), Names{});
  EXPECT_EQ(cycle.look_again_at(), now + 300ms);
  EXPECT_EQ(names(cycle.time_passed(now + 300ms)), (Names{"leave", "finish:1"}));
}

TEST_F(LifecycleTest, ASecondFailureWhileDrainingDoesNotMoveTheDeadline) {
  run_round(1);
  cycle.worker_exited(exit(1, 7), now);
  cycle.time_passed(now + kPatience);
  cycle.job_ended(JobEnded{false, {}}, now + 10s);
  EXPECT_EQ(cycle.look_again_at(), now + kGrace);
}

TEST_F(LifecycleTest, ASignalIsPassedOnAndEndsTheJob) {
  run_round(1);
  const Actions actions = cycle.stop_requested(SIGINT, now);
  EXPECT_EQ(names(actions), (Names{"leave", "SIGINT"}));
  EXPECT_EQ(std::get<LeaveJob>(actions.front()).reason.exit_code, -SIGINT) << "the others' codes";
  cycle.worker_exited(exit(0, 0), now);
  EXPECT_EQ(names(cycle.worker_exited(exit(1, 0), now)), Names{"finish:1"});
  EXPECT_EQ(cycle.ending().signal, SIGINT);
}

TEST_F(LifecycleTest, ASecondSignalKillsAtOnceAndAThirdChangesNothing) {
  run_round(1);
  cycle.stop_requested(SIGTERM, now);
  EXPECT_EQ(names(cycle.stop_requested(SIGTERM, now)), Names{"kill"});
  // The limit of the kill does not begin anew: the guardian counts on it.
  const Time look_at = cycle.look_again_at();
  EXPECT_EQ(names(cycle.stop_requested(SIGTERM, now + std::chrono::seconds(1))), Names{});
  EXPECT_EQ(cycle.look_again_at(), look_at);
  cycle.worker_exited(exit(0, -SIGKILL), now);
  EXPECT_EQ(names(cycle.worker_exited(exit(1, -SIGKILL), now)), Names{"finish:1"});
}

TEST_F(LifecycleTest, ASignalWhileJoiningEndsAtOnce) {
  cycle.start();
  EXPECT_EQ(names(cycle.stop_requested(SIGTERM, now)), (Names{"leave", "finish:143"}));
  EXPECT_EQ(names(cycle.round_published(round(1), now)), Names{});
}

TEST_F(LifecycleTest, ASignalWhileWaitingForPeersEndsAtOnce) {
  run_round(1);
  cycle.worker_exited(exit(0, 0), now);
  cycle.worker_exited(exit(1, 0), now);
  EXPECT_EQ(names(cycle.stop_requested(SIGTERM, now)), (Names{"leave", "finish:1"}));
}

TEST_F(LifecycleTest, ASignalBeatsARestartUnderWay) {
  run_round(1);
  cycle.worker_exited(exit(1, 7), now);
  cycle.round_broken(RoundBroken{1, {}}, now);
  EXPECT_EQ(names(cycle.stop_requested(SIGTERM, now)), Names{"leave"});
  EXPECT_EQ(names(cycle.worker_exited(exit(0, -SIGTERM), now)), Names{"finish:1"});
}

TEST_F(LifecycleTest, ALostLinkStopsTheWorkersAndIsNamed) {
  run_round(1);
  EXPECT_EQ(names(cycle.session_lost(SessionLost{Error(ErrorCode::kUnavailable, "gone")}, now)),
            Names{"SIGTERM"});
  cycle.worker_exited(exit(0, -SIGTERM), now);
  EXPECT_EQ(names(cycle.worker_exited(exit(1, -SIGTERM), now)), Names{"finish:1"});
  EXPECT_EQ(cycle.ending().session_error->message(), "gone");
}

TEST_F(LifecycleTest, AnEndedLeaseKillsTheWorkersAtOnce) {
  run_round(1);
  const SessionLost fenced{.error = Error(ErrorCode::kUnavailable, "silent"), .is_fenced = true};
  EXPECT_EQ(names(cycle.session_lost(fenced, now)), (Names{"SIGTERM", "kill"}));
  EXPECT_EQ(names(cycle.session_lost(fenced, now)), Names{});
  cycle.worker_exited(exit(0, -SIGKILL), now);
  EXPECT_EQ(names(cycle.worker_exited(exit(1, -SIGKILL), now)), Names{"finish:1"});
}

// If the nodes elect their leader (etcd), the loss of one is a broken round.
TEST_F(LifecycleTest, ABrokenRoundOfAFencedNodeKillsTheWorkersAtOnce) {
  run_round(1);
  EXPECT_EQ(names(cycle.round_broken({.round = 1, .is_fenced = true}, now)),
            (Names{"SIGTERM", "kill"}));
  cycle.worker_exited(exit(0, -SIGKILL), now);
  EXPECT_EQ(names(cycle.worker_exited(exit(1, -SIGKILL), now)), Names{"join"});
}

// The user's grace counts no more: the others may start without this node.
TEST_F(LifecycleTest, AnEndedLeaseKillsAlsoWhileTheNodeLeaves) {
  run_round(1);
  EXPECT_EQ(names(cycle.stop_requested(SIGTERM, now)), (Names{"leave", "SIGTERM"}));
  EXPECT_EQ(names(cycle.session_lost({.error = Error(ErrorCode::kUnavailable, "gone")}, now)),
            Names{});
  EXPECT_EQ(names(cycle.session_lost(
                {.error = Error(ErrorCode::kUnavailable, "silent"), .is_fenced = true}, now)),
            Names{"kill"});
}

// The others may start a round then, whatever grace the user gave.
TEST_F(LifecycleTest, NoGraceIsLongerThanTheLease) {
  run_round(1);
  const Time ends = now + std::chrono::milliseconds(1500);
  EXPECT_EQ(names(cycle.session_lost(
                {.error = Error(ErrorCode::kUnavailable, "gone"), .lease_ends = ends}, now)),
            Names{"SIGTERM"});
  ASSERT_LE(cycle.look_again_at(), ends);
  cycle.time_passed(cycle.look_again_at());
  EXPECT_EQ(cycle.look_again_at(), ends);
  EXPECT_EQ(names(cycle.time_passed(ends)), Names{"kill"});
}

TEST_F(LifecycleTest, NoGraceOfANodeThatLeavesIsLongerThanTheLease) {
  run_round(1);
  EXPECT_EQ(names(cycle.stop_requested(SIGTERM, now)), (Names{"leave", "SIGTERM"}));
  const Time ends = now + std::chrono::milliseconds(1500);
  EXPECT_EQ(names(cycle.session_lost(
                {.error = Error(ErrorCode::kUnavailable, "gone"), .lease_ends = ends}, now)),
            Names{});
  cycle.time_passed(cycle.look_again_at());
  EXPECT_EQ(names(cycle.time_passed(ends)), Names{"kill"});
}

// The others may have begun a round meanwhile.
TEST_F(LifecycleTest, ASuspensionMovesNoEndOfTheLease) {
  run_round(1);
  const Time ends = now + std::chrono::milliseconds(1500);
  cycle.session_lost({.error = Error(ErrorCode::kUnavailable, "gone"), .lease_ends = ends}, now);
  EXPECT_EQ(names(cycle.time_passed(ends + 65s)), Names{"kill"});
}

TEST_F(LifecycleTest, ASuspensionMovesNoDeadlineOfAnOperator) {
  run_round(1);
  cycle.drain_wanted({.deadline = 5s}, now);
  cycle.time_passed(now + kPatience);
  EXPECT_EQ(names(cycle.time_passed(now + 5s + 350ms)), Names{"kill"});
}

TEST_F(LifecycleTest, GivingUpBeforeTheFirstRoundFinishes) {
  EXPECT_EQ(names(cycle.give_up({.message = "no folder"}, now)), (Names{"leave", "finish:1"}));
  EXPECT_EQ(cycle.ending().cause->message, "no folder");
}

TEST_F(LifecycleTest, ANewRoundStartsWithACleanSlate) {
  run_round(1);
  cycle.worker_exited(exit(1, 7), now);
  cycle.round_broken(RoundBroken{1, {}}, now);
  cycle.worker_exited(exit(0, -SIGTERM), now);
  cycle.round_published(round(2, 1), now + 1s);
  EXPECT_TRUE(cycle.ended().empty());
  EXPECT_EQ(cycle.live_workers(), 2);
  EXPECT_EQ(cycle.look_again_at(), Time::max());
}

TEST_F(LifecycleTest, FailuresSayHowTheWorkerEnded) {
  const auto message_of = [&](WorkerExit how) {
    Lifecycle fresh({.grace = kGrace, .worker_count = 2, .hostname = "h"});
    fresh.start();
    fresh.round_published(round(1), now);
    const Actions actions = fresh.worker_exited(how, now);
    return std::get<ReportFailure>(actions.at(0)).failure.message;
  };
  EXPECT_EQ(message_of(exit(0, 3)), "rank 2 (local rank 0, pid 100) on h exited with code 3");
  EXPECT_EQ(message_of(exit(1, -9)), "rank 3 (local rank 1, pid 100) on h was killed by SIGKILL");
  EXPECT_EQ(message_of({.local_rank = 0, .pid = 100, .exit_code = 127, .exec_errno = EACCES}),
            "rank 2 (local rank 0, pid 100) on h could not be started: Permission denied");
}

// ---- an operator takes the node out ----

TEST_F(LifecycleTest, ADrainedNodeLeavesAndEndsWell) {
  run_round(1);
  EXPECT_EQ(names(cycle.drain_wanted({}, now)), (Names{"leave", "SIGTERM"}));
  EXPECT_EQ(names(cycle.worker_exited(exit(0, 3), now)), Names{});
  EXPECT_EQ(names(cycle.worker_exited(exit(1, -SIGTERM), now)), Names{"finish:0"});
  EXPECT_TRUE(cycle.ending().drained);
  EXPECT_FALSE(cycle.ending().succeeded);
}

TEST_F(LifecycleTest, TheDeadlineOfADrainTakesThePlaceOfTheGrace) {
  run_round(1);
  cycle.drain_wanted({.deadline = 100ms}, now);
  EXPECT_EQ(cycle.look_again_at(), now + 100ms) << "sooner than the shells' patience";
  EXPECT_EQ(names(cycle.time_passed(now + 100ms)), Names{"kill"});
  EXPECT_EQ(names(cycle.workers_exited({exit(0, -SIGKILL), exit(1, -SIGKILL)}, now + 110ms)),
            Names{"finish:0"});
}

TEST_F(LifecycleTest, ADrainMayGiveMoreTimeThanTheGrace) {
  run_round(1);
  cycle.drain_wanted({.deadline = 10 * kGrace}, now);
  EXPECT_EQ(names(cycle.time_passed(now + kPatience)), Names{"shells:SIGTERM"});
  EXPECT_EQ(cycle.look_again_at(), now + 10 * kGrace);
}

TEST_F(LifecycleTest, ASecondDrainOnlyShortensTheDeadline) {
  run_round(1);
  cycle.drain_wanted({.deadline = 10 * kGrace}, now);
  EXPECT_EQ(names(cycle.drain_wanted({.deadline = 20 * kGrace}, now)), Names{});
  EXPECT_EQ(names(cycle.drain_wanted({}, now)), Names{});
  EXPECT_EQ(names(cycle.time_passed(now + kPatience)), Names{"shells:SIGTERM"});
  EXPECT_EQ(cycle.look_again_at(), now + 10 * kGrace);
  EXPECT_EQ(names(cycle.drain_wanted({.deadline = 50ms}, now + kPatience)), Names{});
  EXPECT_EQ(cycle.look_again_at(), now + kPatience + 50ms);
  EXPECT_EQ(names(cycle.time_passed(now + kPatience + 50ms)), Names{"kill"});
  EXPECT_EQ(names(cycle.drain_wanted({.deadline = 1ms}, now + kPatience + 60ms)), Names{});
}

TEST_F(LifecycleTest, ANodeThatWaitsIsDrainedAtOnce) {
  cycle.start();
  EXPECT_EQ(names(cycle.drain_wanted({}, now)), (Names{"leave", "finish:0"}));
}

TEST_F(LifecycleTest, AWorkerThatOutlivesADrainIsAFailure) {
  run_round(1);
  cycle.drain_wanted({}, now);
  cycle.time_passed(now + kPatience);
  EXPECT_EQ(names(cycle.time_passed(now + kGrace)), Names{"kill"});
  EXPECT_EQ(names(cycle.time_passed(now + kGrace + kKillLimit)), (Names{"leave", "finish:1"}));
}

TEST_F(LifecycleTest, ADrainDuringTheEndOfTheJobChangesNothing) {
  run_round(1);
  cycle.stop_requested(SIGINT, now);
  EXPECT_EQ(names(cycle.drain_wanted({}, now)), Names{});
  EXPECT_FALSE(cycle.ending().drained);
}

TEST_F(LifecycleTest, AStoppedJobEndsAsByASignal) {
  run_round(1);
  EXPECT_EQ(names(cycle.job_ended({.cause = {.message = "somebody"}, .is_stopped = true}, now)),
            Names{"SIGTERM"});
  EXPECT_EQ(exit_code_of(cycle.ending(), {.detailed = true}), kExitPreempted);
  EXPECT_EQ(exit_code_of(cycle.ending(), {}), 1);
}

}  // namespace
}  // namespace ddprun::agent
