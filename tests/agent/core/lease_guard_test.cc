// When the guardian ends the workers of an agent that is stopped.
#include "agent/core/lease_guard.h"

#include <gtest/gtest.h>

namespace ddprun::agent {
namespace {

using std::chrono::milliseconds;
using namespace std::chrono_literals;

constexpr Time kEnds{10s};

class LeaseGuardTest : public testing::Test {
 protected:
  LeaseGuardTest() { guard.look({.workers_until = kEnds, .is_stopped = false}, Time(1s)); }

  // Looks whenever the guard wants to, up to `until`. Returns when the workers were ended; zero:
  // not.
  Time run(LeaseGuard::AgentSighting seen, Time until, milliseconds late = 0ms) {
    while (guard.next() != Time::max() && guard.next() + late <= until) {
      const Time now = guard.next() + late;
      ++looks;
      if (guard.look(seen, now)) return now;
    }
    return {};
  }

  LeaseGuard guard;
  int looks = 0;
};

TEST_F(LeaseGuardTest, EndsTheWorkersOfAStoppedAgentBeforeTheHostGoesOn) {
  const Time ended = run({kEnds, true}, Time(60s));
  EXPECT_GT(ended, kEnds);
  EXPECT_LT(ended, kEnds + rendezvous::kFenceMargin / 2);
  EXPECT_EQ(guard.next(), Time::max());
}

TEST_F(LeaseGuardTest, EndsThemOnceForEachLease) {
  run({kEnds, true}, Time(60s));
  EXPECT_FALSE(guard.look({kEnds, true}, Time(20s)));
  EXPECT_EQ(guard.next(), Time::max());
  EXPECT_FALSE(guard.look({Time(70s), true}, Time(61s)));
  EXPECT_GT(run({Time(70s), true}, Time(90s)), Time(70s));
}

TEST_F(LeaseGuardTest, LetsAnAgentThatRunsActItself) {
  EXPECT_EQ(run({kEnds, false}, Time(70s)), Time{});
  EXPECT_LE(looks, 70);  // one a second at most
}

TEST_F(LeaseGuardTest, SleepsWhileNothingEndsTheWorkers) {
  EXPECT_FALSE(guard.look({Time{}, true}, Time(11s)));
  EXPECT_EQ(guard.next(), Time::max());
}

TEST_F(LeaseGuardTest, WakesOnceALeaseAndNotAtEachRenewal) {
  for (int second = 10; second < 400; ++second) {
    if (guard.next() > Time(std::chrono::seconds(second))) continue;
    ++looks;
    EXPECT_FALSE(guard.look({Time(std::chrono::seconds(second + 40)), true}, guard.next()));
  }
  EXPECT_LE(looks, 11);
}

TEST_F(LeaseGuardTest, TakesAnEarlierEnd) {
  EXPECT_FALSE(guard.look({Time(5s), true}, Time(2s)));
  EXPECT_LT(run({Time(5s), true}, Time(60s)), Time(6s));
}

// The machine was suspended: the guardian comes late, and so does the agent. It asks its host
// first.
TEST_F(LeaseGuardTest, CountsNoTimeInWhichItDidNotRunItself) {
  EXPECT_FALSE(guard.look({kEnds, true}, Time(40s)));
  const Time ended = run({kEnds, true}, Time(60s));
  EXPECT_GT(ended, Time(40s) + rendezvous::kAskLimit);
  EXPECT_LT(ended, Time(42s));
}

TEST_F(LeaseGuardTest, AnAgentThatGoesOnInTheGraceKeepsItsWorkers) {
  guard.look({kEnds, true}, Time(40s));
  EXPECT_FALSE(guard.look({kEnds, false}, guard.next()));        // it runs again, and asks
  EXPECT_FALSE(guard.look({Time(41s), false}, Time(40'500ms)));  // until then
  EXPECT_EQ(run({Time(82s), false}, Time(80s)), Time{});         // it was answered
}

TEST_F(LeaseGuardTest, ASuspensionAmidItsLooksIsNoProofEither) {
  guard.look({kEnds, true}, guard.next());
  guard.look({kEnds, true}, guard.next());
  const Time woken = guard.next() + 30s;
  EXPECT_FALSE(guard.look({kEnds, true}, woken));
  EXPECT_GT(run({kEnds, true}, Time(90s)), woken + rendezvous::kAskLimit);
}

TEST_F(LeaseGuardTest, AnAgentThatRunsForAMomentIsCountedAnew) {
  guard.look({kEnds, true}, guard.next());
  guard.look({kEnds, true}, guard.next());
  EXPECT_FALSE(guard.look({kEnds, false}, guard.next()));
  EXPECT_FALSE(guard.look({kEnds, true}, guard.next()));
  EXPECT_NE(run({kEnds, true}, Time(60s)), Time{});
}

// A signal, or a child's death, wakes the guardian at any time.
TEST_F(LeaseGuardTest, LooksThatComeTooEarlyDoNotCount) {
  const Time first = guard.next();
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(guard.look({kEnds, true}, first));
}

}  // namespace
}  // namespace ddprun::agent
