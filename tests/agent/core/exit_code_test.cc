// The exit code that each ending gets.
#include "agent/core/exit_code.h"

#include <gtest/gtest.h>

#include <csignal>

namespace ddprun::agent {
namespace {

TEST(ExitCode, IsTorchrunsUnlessDetailsAreAskedFor) {
  const rendezvous::Failure failed{.rank = 1, .exit_code = 7};
  const rendezvous::Failure killed{.rank = 1, .exit_code = -9};
  const ExitFacts plain{.workers_started = true};
  const ExitFacts detailed{.detailed = true, .workers_started = true};
  EXPECT_EQ(exit_code_of({.succeeded = true}, detailed), 0);
  EXPECT_EQ(exit_code_of({.cause = failed}, plain), 1);
  EXPECT_EQ(exit_code_of({.cause = failed}, detailed), 7);
  EXPECT_EQ(exit_code_of({.cause = killed}, detailed), 137);
  EXPECT_EQ(exit_code_of({.cause = failed},
                         {.detailed = true, .workers_started = true, .max_restarts = 2}),
            kExitBudgetSpent);
  const rendezvous::Failure last{.rank = 1, .exit_code = 7, .ends_job = true};
  EXPECT_EQ(
      exit_code_of({.cause = last}, {.detailed = true, .workers_started = true, .max_restarts = 2}),
      7);
  EXPECT_EQ(exit_code_of({.cause = failed, .no_progress = rendezvous::NoProgress{}},
                         {.detailed = true, .workers_started = true, .max_restarts = 2}),
            kExitNoProgress);
  EXPECT_EQ(exit_code_of({.signal = SIGTERM}, plain), 1);
  EXPECT_EQ(exit_code_of({.signal = SIGTERM}, {}), 143);
  EXPECT_EQ(exit_code_of({.signal = SIGTERM, .cause = failed}, detailed), kExitPreempted);
  EXPECT_EQ(exit_code_of({.session_error = Error(ErrorCode::kTimedOut, "x")}, detailed),
            kExitRendezvousFailed);
  EXPECT_EQ(exit_code_of({.launcher_failed = true, .cause = rendezvous::Failure{}}, detailed),
            kExitLauncherFailed);
  EXPECT_EQ(exit_code_of({.cause = rendezvous::Failure{}}, detailed), 1);
}

TEST(ExitCode, OfTheOtherNodesWhenOneWasToldToEnd) {
  const rendezvous::Failure told{.exit_code = -SIGTERM};
  EXPECT_EQ(exit_code_of({.cause = told}, {.detailed = true, .workers_started = true}),
            kExitPreempted);
  EXPECT_EQ(exit_code_of({.cause = told}, {.workers_started = true}), 1);
}

}  // namespace
}  // namespace ddprun::agent
