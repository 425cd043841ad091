#include "rendezvous/core/keep_alive.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace ddprun::rendezvous {
namespace {

using std::chrono::milliseconds;

constexpr KeepAlive kShort{.interval = milliseconds(1000)};

TEST(KeepAlive, GivesALeaseForTheProductOfBothSettingsAndSomeHeartbeats) {
  EXPECT_EQ(lease_for(kShort, 1), (Lease{milliseconds(3500), milliseconds(250)}));
  EXPECT_EQ(lease_for({.interval = milliseconds(2000), .max_attempts = 5}, 1),
            (Lease{milliseconds(11'000), milliseconds(500)}));
}

TEST(KeepAlive, HeartbeatsGetRarerWhereNodesAreMany) {
  EXPECT_EQ(lease_for(kShort, 83).heartbeat_every, milliseconds(250));
  EXPECT_EQ(lease_for(kShort, 1000), (Lease{milliseconds(6750), milliseconds(3000)}));
  EXPECT_EQ(lease_for(kShort, 10'000), (Lease{milliseconds(18'250), milliseconds(10'000)}));
}

// The last answer may be as old as the pause between two heartbeats.
TEST(KeepAlive, TheDefaultOutlivesASuspensionOfThirtySeconds) {
  const Lease lease = lease_for({}, 1);
  EXPECT_GE(lease.length - lease.heartbeat_every, milliseconds(35'000));
}

// The host's patience is longer than the lease, whatever the settings. The difference is the time
// that the node needs to end its workers.
TEST(KeepAlive, TheHostWaitsLongerThanTheLease) {
  for (const int interval : {1, 7, 1000, 60'000})
    for (const int attempts : {1, 3, 100})
      for (const int nodes : {1, 100, 16'384}) {
        const KeepAlive wanted{milliseconds(interval), attempts};
        const Lease lease = lease_for(wanted, nodes);
        // The first look may come at once after the node was heard.
        EXPECT_GE((patience(wanted, lease)) * look_every(wanted), lease.length + kFenceMargin);
      }
}

TEST(KeepAlive, ALeaseCountsFromTheHeartbeatThatWasAnswered) {
  HeldLease held;
  EXPECT_FALSE(held.is_held());
  held.renewed(milliseconds(1000), {milliseconds(3500), milliseconds(250)});
  EXPECT_TRUE(held.is_held());
  EXPECT_EQ(held.ends(), milliseconds(4500));
  held.renewed(milliseconds(2000), {milliseconds(3500), milliseconds(250)});
  EXPECT_EQ(held.ends(), milliseconds(5500));
  // A later lease may be shorter: the host has less patience now.
  held.renewed(milliseconds(2100), {milliseconds(1000), milliseconds(250)});
  EXPECT_EQ(held.ends(), milliseconds(3100));
}

// The host may not have read yet that the node is back, and goes by what it heard before.
TEST(KeepAlive, TheFirstLeaseOfANodeThatComesBackProlongsNothing) {
  constexpr Lease lease{milliseconds(3500), milliseconds(250)};
  HeldLease held;
  held.carry(milliseconds(1200));
  held.renewed(milliseconds(1000), lease);
  EXPECT_EQ(held.ends(), milliseconds(1200));
  EXPECT_EQ(held.next_heartbeat(), milliseconds(1000)) << "its answer is wanted soon";
  EXPECT_TRUE(held.is_carried());
  held.heartbeat_sent(milliseconds(1001));
  held.renewed(milliseconds(1001), lease);
  EXPECT_EQ(held.ends(), milliseconds(4501));
  EXPECT_FALSE(held.is_carried());
}

TEST(KeepAlive, AHeartbeatWaitsForTheAnswerOfTheOneBefore) {
  constexpr Lease lease{milliseconds(3500), milliseconds(250)};
  HeldLease held;
  held.renewed(milliseconds(1000), lease);
  EXPECT_EQ(held.next_heartbeat(), milliseconds(1250));
  held.heartbeat_sent(milliseconds(1250));
  EXPECT_EQ(held.next_heartbeat(), milliseconds(1250 + 875)) << "no answer yet";
  held.renewed(milliseconds(1250), lease);
  EXPECT_EQ(held.next_heartbeat(), milliseconds(1500));
  // The answer to an older heartbeat does not count for the newer one.
  held.heartbeat_sent(milliseconds(1500));
  held.heartbeat_sent(milliseconds(2375));
  held.renewed(milliseconds(1500), lease);
  EXPECT_EQ(held.next_heartbeat(), milliseconds(2375 + 875));
}

TEST(KeepAlive, AProcessThatDidNotRunAsksBeforeItsLeaseIsOver) {
  constexpr Lease lease{milliseconds(3500), milliseconds(250)};
  HeldLease held;
  held.renewed(milliseconds(1000), lease);
  EXPECT_EQ(held.look_at(), milliseconds(4500) - kAskLimit);
  EXPECT_FALSE(held.is_over(held.look_at()));
  EXPECT_EQ(held.look_at(), milliseconds(4500));
  EXPECT_FALSE(held.is_over(milliseconds(4499)));
  EXPECT_FALSE(held.is_doubted(milliseconds(4499)));
  EXPECT_FALSE(held.is_over(milliseconds(30'000))) << "nobody looked for long";
  EXPECT_EQ(held.look_at(), milliseconds(30'000) + kAskLimit);
  EXPECT_EQ(held.next_heartbeat(), milliseconds(30'000)) << "it asks at once";
  EXPECT_EQ(held.ends(), milliseconds(4500)) << "the lease itself is no longer";
  EXPECT_TRUE(held.is_doubted(milliseconds(30'000)));
  // An answer that was under way before it was suspended is none.
  held.renewed(milliseconds(1250), lease);
  EXPECT_EQ(held.ends(), milliseconds(4500));
  held.renewed(milliseconds(30'000), lease);
  EXPECT_FALSE(held.is_over(milliseconds(30'001)));
  EXPECT_EQ(held.look_at(), milliseconds(33'500) - kAskLimit);
  EXPECT_FALSE(held.is_doubted(milliseconds(30'001)));
}

TEST(KeepAlive, ItAsksOnce) {
  HeldLease held;
  held.renewed(milliseconds(1000), {milliseconds(3500), milliseconds(250)});
  EXPECT_FALSE(held.is_over(milliseconds(30'000)));
  EXPECT_FALSE(held.is_over(milliseconds(30'000) + kAskLimit - milliseconds(1)));
  EXPECT_TRUE(held.is_over(milliseconds(30'000) + kAskLimit));
}

// The end of its connection meanwhile is no answer: another leader may give one.
TEST(KeepAlive, AProcessThatDidNotRunWasSuspendedUntilItIsAnswered) {
  constexpr Lease lease{milliseconds(3500), milliseconds(250)};
  HeldLease held;
  EXPECT_FALSE(held.was_suspended(milliseconds(30'000))) << "it has no lease yet";
  held.renewed(milliseconds(1000), lease);
  EXPECT_FALSE(held.was_suspended(milliseconds(3000))) << "its lease does not end soon";
  EXPECT_TRUE(held.was_suspended(milliseconds(30'000))) << "nobody has looked yet";
  EXPECT_FALSE(held.is_over(milliseconds(30'000)));
  EXPECT_TRUE(held.was_suspended(milliseconds(30'100)));
  HeldLease silent = held;
  held.renewed(milliseconds(30'000), lease);
  EXPECT_FALSE(held.was_suspended(milliseconds(30'100)));
  EXPECT_TRUE(silent.is_over(milliseconds(30'000) + kAskLimit));
  EXPECT_FALSE(silent.was_suspended(milliseconds(30'000) + kAskLimit))
      << "it was told nothing in time";
}

// It was cut off, and runs: the others start soon.
TEST(KeepAlive, AProcessThatRanDoesNotAsk) {
  HeldLease held;
  held.renewed(milliseconds(1000), {milliseconds(3500), milliseconds(250)});
  EXPECT_FALSE(held.is_over(held.look_at() + kSuspendedFor - milliseconds(1)));
  EXPECT_TRUE(held.is_over(milliseconds(4500) + kSuspendedFor - milliseconds(1)));
}

// No moment is such that a process that wakes up then has no time for an answer.
TEST(KeepAlive, AProcessThatWakesUpNearTheEndOfItsLeaseAsksToo) {
  constexpr milliseconds kAnswer{600};
  for (milliseconds wakes{3000}; wakes < milliseconds(6000); ++wakes) {
    HeldLease held;
    held.renewed(milliseconds(1000), {milliseconds(3500), milliseconds(250)});
    held.heartbeat_sent(milliseconds(1250));
    EXPECT_FALSE(held.is_over(wakes)) << wakes.count();
    EXPECT_LE(held.next_heartbeat(), wakes) << "it asks at once";
    EXPECT_GT(std::max(held.look_at(), held.ends()), wakes + kAnswer) << wakes.count();
    EXPECT_LE(held.look_at(), std::max(held.ends(), wakes + kAskLimit)) << wakes.count();
  }
}

// It ran until a moment ago, and an old answer says when the lease ends: it is not late.
TEST(KeepAlive, ALateAnswerIsNoLateLook) {
  constexpr Lease lease{milliseconds(3500), milliseconds(250)};
  HeldLease held;
  held.renewed(milliseconds(0), lease);
  EXPECT_FALSE(held.is_over(held.look_at()));
  held.renewed(milliseconds(250), lease);
  EXPECT_FALSE(held.is_over(milliseconds(3000)));
  EXPECT_EQ(held.look_at(), milliseconds(3750));
  EXPECT_TRUE(held.is_over(milliseconds(3750)));
}

// A node that is let in again in the last second of its lease.
TEST(KeepAlive, ALeaseThatIsCarriedOnIsNotSeenLate) {
  HeldLease held;
  held.carry(milliseconds(4500));
  held.renewed(milliseconds(4400), {milliseconds(3500), milliseconds(250)});
  EXPECT_FALSE(held.is_over(milliseconds(4400)));
  EXPECT_EQ(held.look_at(), milliseconds(4500));
  EXPECT_TRUE(held.is_over(milliseconds(4500)));
}

// As when most of a thousand nodes leave at one time.
TEST(KeepAlive, AShorterLeaseBringsTheNextHeartbeatForward) {
  const Lease many = lease_for(kShort, 1000);
  const Lease few = lease_for(kShort, 100);
  HeldLease held;
  held.renewed(milliseconds(0), many);
  held.heartbeat_sent(many.heartbeat_every);
  held.renewed(many.heartbeat_every, few);
  EXPECT_LT(held.next_heartbeat(), held.ends());
  EXPECT_EQ(held.next_heartbeat(), many.heartbeat_every + few.heartbeat_every);
}

TEST(KeepAlive, SilenceIsCountedInLooks) {
  const KeepAlive wanted = kShort;
  const Lease lease = lease_for(wanted, 1);
  Silence silence;
  silence.granted(wanted, lease);
  for (int look = 0; look < patience(wanted, lease); ++look) EXPECT_FALSE(silence.looked());
  silence.broken();
  for (int look = 0; look < patience(wanted, lease); ++look) EXPECT_FALSE(silence.looked());
  EXPECT_TRUE(silence.looked());
  EXPECT_EQ(silence.length(), milliseconds(3900));
}

// As when most nodes of a large job leave at one time. The node may have heard the first lease
// only.
TEST(KeepAlive, NoLeaseIsForgottenBeforeItsEnd) {
  const KeepAlive wanted = kShort;
  const Lease many = lease_for(wanted, 3000);
  const Lease few = lease_for(wanted, 1);
  Silence silence;
  silence.granted(wanted, many);
  silence.granted(wanted, few);
  silence.granted(wanted, few);
  for (int look = 0; look < patience(wanted, many); ++look) ASSERT_FALSE(silence.looked()) << look;
  EXPECT_TRUE(silence.looked());
}

TEST(KeepAlive, ALeaseHoldsOverAnotherConnection) {
  const KeepAlive wanted = kShort;
  const Lease many = lease_for(wanted, 3000);
  Silence before;
  before.granted(wanted, many);
  Silence after;
  after.granted(wanted, lease_for(wanted, 1));
  after.follows(before);
  for (int look = 0; look < patience(wanted, many); ++look) ASSERT_FALSE(after.looked()) << look;
  EXPECT_TRUE(after.looked());
}

}  // namespace
}  // namespace ddprun::rendezvous
