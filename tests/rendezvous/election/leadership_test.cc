// The agent that leads: candidates, followers, and agents that leave. Virtual time.
#include <gtest/gtest.h>

#include "tests/rendezvous/election/leadership_fixture.h"

namespace ddprun::rendezvous {
namespace {

// ---- candidates ----

TEST_F(LeadershipTest, TakesAKeyThatNobodyHolds) {
  EXPECT_EQ(start(), "read");
  EXPECT_EQ(key_is({}), "grant");
  EXPECT_EQ(granted(7), "take lease=7 if=0");
  EXPECT_EQ(taken(10), "lead 10; watch from 11");
  EXPECT_TRUE(leadership.leads());
  EXPECT_EQ(leadership.revision(), 10);
}

TEST_F(LeadershipTest, FollowsWhoWasFaster) {
  start();
  key_is({});
  granted(7);
  EXPECT_EQ(not_taken(KeyHolder{"a", 9, 3}), "watch from 10; probe a");
  EXPECT_EQ(probed(), "follow a");
  EXPECT_EQ(show(leadership.followed(now)), "stop watching");
  EXPECT_EQ(leadership.look_again_at(), Time::max());
}

// The watch had told of something, and then the leader let it in.
TEST_F(LeadershipTest, AReadFromBeforeItWasLetInChangesNothing) {
  show(leadership.start(now));
  key_is(KeyHolder{"a", 5, 1});
  probed();
  EXPECT_EQ(changed(), "read");
  EXPECT_EQ(show(leadership.followed(now)), "stop watching");
  EXPECT_EQ(failed(ErrorCode::kUnavailable), "");
  EXPECT_EQ(failed(ErrorCode::kRejected), "");
  EXPECT_EQ(after(std::chrono::hours(1)), "");
}

TEST_F(LeadershipTest, LooksAgainIfTheKeyWentMeanwhile) {
  start();
  key_is({});
  granted(7);
  EXPECT_EQ(not_taken({}), "");
  EXPECT_EQ(after(milliseconds(200)), "read");
}

TEST_F(LeadershipTest, LeadsIfItsOwnWriteWasDoneAndTheAnswerLost) {
  start();
  key_is({});
  granted(7);
  EXPECT_EQ(not_taken(KeyHolder{"me", 12, 7}), "lead 12; watch from 13");
}

TEST_F(LeadershipTest, FindsItsOwnKeyAfterALostAnswer) {
  start();
  key_is({});
  granted(7);
  failed(ErrorCode::kUnavailable);
  EXPECT_EQ(after(milliseconds(200)), "read");
  EXPECT_EQ(key_is(KeyHolder{"me", 12, 7}), "lead 12; watch from 13");
}

TEST_F(LeadershipTest, DoesNotLeadByAnAnswerThatCameTooLate) {
  start();
  key_is({});
  granted(7);
  now += milliseconds(2500);
  EXPECT_EQ(taken(10), "read");
  EXPECT_FALSE(leadership.leads());
}

TEST_F(LeadershipTest, TakesOverFromADeadProcessAtOnce) {
  follow();
  EXPECT_EQ(show(leadership.leader_lost(now)), "read");
  EXPECT_EQ(key_is(KeyHolder{"a", 5, 1}), "watch from 6; probe a");
  EXPECT_EQ(refused(), "grant");
  EXPECT_EQ(granted(7), "take lease=7 if=5");
  EXPECT_EQ(taken(11), "lead 11; watch from 12");
}

// A firewall that is loaded anew refuses for a second or so. The leader lives, and nothing is taken
// from it.
TEST_F(LeadershipTest, ARefusalOfAnotherHostMustLast) {
  follow();
  show(leadership.leader_lost(now));
  const auto probes = [this] { return key_is(KeyHolder{"a", 5, 1}); };
  EXPECT_EQ(probes(), "watch from 6; probe a");
  const auto is_refused_for_long = [&] {
    for (int tries = 0; tries < 12; ++tries) {
      EXPECT_EQ(perhaps_refused(), "") << tries;
      EXPECT_EQ(after(milliseconds(200)), "read");
      probes();
    }
  };
  is_refused_for_long();
  EXPECT_EQ(silent(), "") << "no refusal: it begins anew";
  EXPECT_EQ(after(milliseconds(500)), "read");
  probes();
  is_refused_for_long();
  EXPECT_EQ(perhaps_refused(), "");
  after(milliseconds(200));
  probes();
  EXPECT_EQ(perhaps_refused(), "grant");
}

// A candidate that stood still has not seen how the leader lived between two firewalls.
TEST_F(LeadershipTest, TwoRefusalsFarApartAreNotOne) {
  follow();
  show(leadership.leader_lost(now));
  key_is(KeyHolder{"a", 5, 1});
  EXPECT_EQ(perhaps_refused(), "");
  EXPECT_EQ(after(milliseconds(2501)), "read");
  key_is(KeyHolder{"a", 5, 1});
  EXPECT_EQ(perhaps_refused(), "");
  EXPECT_EQ(after(milliseconds(2500)), "read");
  key_is(KeyHolder{"a", 5, 1});
  EXPECT_EQ(perhaps_refused(), "grant");
}

// No firewall closes a connection. So the process is dead, and nobody waits.
TEST_F(LeadershipTest, ARefusalBehindAClosedConnectionCountsAtOnce) {
  follow();
  show(leadership.leader_lost(now, true));
  key_is(KeyHolder{"a", 5, 1});
  EXPECT_EQ(perhaps_refused(), "grant");
}

TEST_F(LeadershipTest, AClosedConnectionSaysNothingOfTheNextOne) {
  follow();
  show(leadership.leader_lost(now, true));
  key_is(KeyHolder{"a", 5, 1});
  probed();
  show(leadership.followed(now));
  show(leadership.leader_lost(now));
  key_is(KeyHolder{"a", 5, 1});
  EXPECT_EQ(perhaps_refused(), "");
}

// The session was reset, since the dead process had not read all of it.
TEST_F(LeadershipTest, ARefusalBehindALivenessConnectionThatWasClosedCountsAtOnce) {
  follow();
  EXPECT_EQ(show(leadership.leader_closed("a", now)), "") << "the session tells";
  EXPECT_EQ(show(leadership.leader_lost(now)), "read");
  key_is(KeyHolder{"a", 5, 1});
  EXPECT_EQ(perhaps_refused(), "grant");
}

TEST_F(LeadershipTest, ALivenessConnectionMayBeClosedAfterTheSession) {
  follow();
  show(leadership.leader_lost(now));
  EXPECT_EQ(show(leadership.leader_closed("a", now)), "") << "the key is being read";
  key_is(KeyHolder{"a", 5, 1});
  EXPECT_EQ(perhaps_refused(), "grant");
}

TEST_F(LeadershipTest, ALivenessConnectionThatIsClosedWhileItIsRefusedEndsTheWait) {
  follow();
  show(leadership.leader_lost(now));
  key_is(KeyHolder{"a", 5, 1});
  EXPECT_EQ(perhaps_refused(), "");
  EXPECT_EQ(show(leadership.leader_closed("a", now)), "read");
  EXPECT_EQ(key_is(KeyHolder{"a", 5, 1}), "watch from 6; probe a");
  EXPECT_EQ(perhaps_refused(), "grant");
}

// Its port may close later than its connections.
TEST_F(LeadershipTest, AProcessThatTakesAConnectionWhileItDiesIsDead) {
  follow();
  show(leadership.leader_closed("a", now));
  show(leadership.leader_lost(now));
  key_is(KeyHolder{"a", 5, 1});
  EXPECT_EQ(probed(), "follow a");
  EXPECT_EQ(show(leadership.leader_lost(now)), "");
  after(milliseconds(200));
  key_is(KeyHolder{"a", 5, 1});
  EXPECT_EQ(perhaps_refused(), "grant");
}

// A device between the two may close a connection on which nobody speaks.
TEST_F(LeadershipTest, ALivenessConnectionThatWasClosedLongBeforeTheSessionSaysNothing) {
  follow();
  show(leadership.leader_closed("a", now));
  now += milliseconds(1000);
  show(leadership.leader_lost(now));
  key_is(KeyHolder{"a", 5, 1});
  EXPECT_EQ(perhaps_refused(), "");
}

// A leader that is silent, or takes connections, is not dead by that.
TEST_F(LeadershipTest, AClosedLivenessConnectionAloneEndsNoLeadership) {
  follow();
  show(leadership.leader_closed("a", now));
  show(leadership.leader_lost(now));
  key_is(KeyHolder{"a", 5, 1});
  EXPECT_EQ(silent(), "");
  after(milliseconds(500));
  key_is(KeyHolder{"a", 5, 1});
  EXPECT_EQ(probed(), "follow a");
}

TEST_F(LeadershipTest, AClosedLivenessConnectionSaysNothingOfAnotherLeader) {
  follow();
  show(leadership.leader_lost(now));
  key_is(KeyHolder{"b", 8, 2});
  probed();
  show(leadership.followed(now));
  EXPECT_EQ(show(leadership.leader_closed("a", now)), "");
  show(leadership.leader_lost(now));
  key_is(KeyHolder{"b", 8, 2});
  EXPECT_EQ(perhaps_refused(), "");
}

TEST_F(LeadershipTest, ALeaderThatIsThereAgainIsFollowed) {
  follow();
  show(leadership.leader_lost(now));
  key_is(KeyHolder{"a", 5, 1});
  perhaps_refused();
  after(milliseconds(2400));
  key_is(KeyHolder{"a", 5, 1});
  EXPECT_EQ(probed(), "follow a");
  show(leadership.leader_lost(now));
  after(milliseconds(200));
  key_is(KeyHolder{"a", 5, 1});
  EXPECT_EQ(perhaps_refused(), "") << "the time counts from now";
}

// A firewall may refuse us, and the leader live behind it.
TEST_F(LeadershipTest, WaitsForTheLeaseOfALeaderThatItNeverReached) {
  start();
  key_is(KeyHolder{"a", 5, 1});
  EXPECT_EQ(refused(), "");
  EXPECT_EQ(after(milliseconds(500)), "read");
  EXPECT_EQ(key_is(KeyHolder{"a", 5, 1}), "watch from 6; probe a");
  EXPECT_EQ(probed(), "follow a");
  show(leadership.leader_lost(now));
  after(milliseconds(200));
  key_is(KeyHolder{"b", 8, 2});
  EXPECT_EQ(refused(), "") << "another leader";
}

TEST_F(LeadershipTest, FollowsAnotherThatTookOverFirst) {
  follow();
  show(leadership.leader_lost(now));
  key_is(KeyHolder{"a", 5, 1});
  refused();
  granted(7);
  EXPECT_EQ(not_taken(KeyHolder{"b", 6, 2}), "watch from 7; probe b");
}

TEST_F(LeadershipTest, WaitsForTheLeaseOfASilentLeader) {
  start();
  key_is(KeyHolder{"a", 5, 1});
  EXPECT_EQ(silent(), "");
  EXPECT_EQ(after(milliseconds(499)), "");
  EXPECT_EQ(after(milliseconds(1)), "read");
  EXPECT_EQ(key_is(KeyHolder{"a", 5, 1}), "watch from 6; probe a");
  EXPECT_EQ(silent(), "");
  EXPECT_EQ(show(leadership.key_changed(now)), "read");
  EXPECT_EQ(key_is({}), "grant");
}

TEST_F(LeadershipTest, HearsThatTheKeyIsGoneWhileItProbesASilentLeader) {
  start();
  key_is(KeyHolder{"a", 5, 1});
  const Ticket probe = ticket;
  EXPECT_EQ(show(leadership.key_changed(now)), "read");
  EXPECT_EQ(show(leadership.probed_in_vain(probe, LeaderRefusal::kNo, now)), "");
  EXPECT_EQ(key_is({}), "grant");
}

TEST_F(LeadershipTest, IgnoresAnAnswerToAnOlderQuestion) {
  start();
  const Ticket old = ticket;
  failed(ErrorCode::kUnavailable);
  after(milliseconds(200));
  EXPECT_EQ(show(leadership.key_read(old, view({}), now)), "");
  EXPECT_EQ(key_is({}), "grant");
}

// ---- an etcd that forgets old revisions ----

TEST_F(LeadershipTest, WatchesFromTheRevisionThatEtcdHadWhenItWasAsked) {
  etcd_revision = 20;
  start();
  EXPECT_EQ(key_is(KeyHolder{"a", 5, 1}), "watch from 21; probe a");
  EXPECT_EQ(refused(), "");
  etcd_revision = 30;
  EXPECT_EQ(after(milliseconds(500)), "read");
  EXPECT_EQ(key_is({}), "grant");
  EXPECT_EQ(granted(7), "take lease=7 if=0");
  etcd_revision = 40;
  EXPECT_EQ(not_taken(KeyHolder{"b", 32, 2}), "watch from 41; probe b");
}

TEST_F(LeadershipTest, AWatchThatEndedDoesNotBreakAProbeOff) {
  start();
  key_is(KeyHolder{"a", 5, 1});
  EXPECT_EQ(watch_ended(), "watch from 6");
  EXPECT_EQ(probed(), "follow a");
  EXPECT_EQ(watch_ended(), "read");
  etcd_revision = 20;
  EXPECT_EQ(key_is(KeyHolder{"a", 5, 1}), "watch from 21");
}

TEST_F(LeadershipTest, AWatchThatEndedDoesNotShortenAPause) {
  start();
  key_is(KeyHolder{"a", 5, 1});
  silent();
  EXPECT_EQ(watch_ended(), "");
  EXPECT_EQ(after(milliseconds(500)), "read");
}

// ---- followers ----

TEST_F(LeadershipTest, LooksForTheNextLeaderWhenItsOwnIsLost) {
  follow();
  EXPECT_EQ(show(leadership.leader_lost(now)), "read");
}

TEST_F(LeadershipTest, LeavesASessionThatIsBeingOpenedAlone) {
  start();
  key_is(KeyHolder{"a", 5, 1});
  probed();
  EXPECT_EQ(show(leadership.key_changed(now)), "read");
  EXPECT_EQ(key_is(KeyHolder{"a", 5, 1}), "watch from 6");
  EXPECT_EQ(show(leadership.key_changed(now)), "read");
  EXPECT_EQ(key_is(KeyHolder{"b", 8, 2}), "watch from 9; probe b");
}

TEST_F(LeadershipTest, RestsAfterALeaderThatLetNobodyIn) {
  start();
  key_is(KeyHolder{"a", 5, 1});
  probed();
  EXPECT_EQ(show(leadership.leader_lost(now)), "");
  EXPECT_EQ(after(milliseconds(200)), "read");
}

// ---- a node that leaves ----

TEST_F(LeadershipTest, WhoWithdrewDoesNotTakeTheKey) {
  follow();
  show(leadership.leader_lost(now));
  leadership.withdraw();
  EXPECT_EQ(key_is({}), "");
  EXPECT_EQ(after(milliseconds(200)), "read");
}

TEST_F(LeadershipTest, WhoWithdrawsWhileALeaseIsAskedForDoesNotTakeTheKey) {
  start();
  EXPECT_EQ(key_is({}), "grant");
  leadership.withdraw();
  EXPECT_EQ(granted(7), "");
  EXPECT_EQ(after(milliseconds(200)), "read");
}

TEST_F(LeadershipTest, WhoWithdrawsWhileTheKeyIsTakenGivesItBack) {
  start();
  key_is({});
  granted(7);
  leadership.withdraw();
  EXPECT_EQ(taken(10), "release 10");
  EXPECT_FALSE(leadership.leads());
  // The answer to the release may be lost, or late.
  EXPECT_EQ(after(milliseconds(200)), "read");
  EXPECT_EQ(key_is(KeyHolder{"us", 10, 7}), "watch from 11; probe us");
}

TEST_F(LeadershipTest, WhoWithdrewGivesAKeyBackWhoseAnswerWasLost) {
  start();
  key_is({});
  granted(7);
  failed(ErrorCode::kUnavailable);
  leadership.withdraw();
  EXPECT_EQ(after(milliseconds(200)), "read");
  EXPECT_EQ(key_is(KeyHolder{"us", 10, 7}), "release 10");
}

// ---- limits ----

TEST_F(LeadershipTest, GivesUpAnEtcdThatNeverAnswers) {
  start();
  failed(ErrorCode::kUnavailable, "e:2379: refused");
  EXPECT_EQ(after(milliseconds(200)), "read");
  now += std::chrono::seconds(60);
  EXPECT_EQ(failed(ErrorCode::kUnavailable, "e:2379: refused"),
            "stop watching; give up: rendezvous in etcd at e:2379: nobody answered within "
            "read_timeout=60 s (e:2379: refused)");
}

TEST_F(LeadershipTest, GivesUpAtOnceIfEtcdSaysNo) {
  start();
  EXPECT_EQ(failed(ErrorCode::kRejected, "e:2379: wrong password"),
            "stop watching; give up: rendezvous in etcd at e:2379: e:2379: wrong password");
  EXPECT_EQ(show(leadership.leader_lost(now)), "");
}

TEST_F(LeadershipTest, WaitsLongerForAnEtcdThatAnsweredOnce) {
  follow();
  show(leadership.leader_lost(now));
  failed(ErrorCode::kUnavailable);
  now += std::chrono::seconds(599);
  EXPECT_EQ(show(leadership.time_passed(now)), "read");
  now += std::chrono::seconds(1);
  EXPECT_EQ(failed(ErrorCode::kUnavailable),
            "stop watching; give up: rendezvous in etcd at e:2379: no leader was found within "
            "join_timeout=600 s (e: no)");
}

TEST_F(LeadershipTest, DoesNothingOnceTheJobIsOver) {
  lead();
  leadership.stop();
  EXPECT_FALSE(leadership.leads());
  EXPECT_EQ(after(std::chrono::seconds(9)), "");
  EXPECT_EQ(show(leadership.key_changed(now)), "");
  EXPECT_EQ(show(leadership.leader_lost(now)), "");
  EXPECT_EQ(leadership.look_again_at(), Time::max());
}

// ---- daemons ----

struct DaemonsTest : LeadershipTest {
  DaemonsTest()
      : LeadershipTest(LeadershipRules{
            .etcd = "e:2379", .look_while_following = milliseconds(1000), .retakes = true}) {}

  void stand_by() {
    start();
    key_is(KeyHolder{"a", 5, 1});
    ASSERT_EQ(probed(), "follow a");
  }
};

TEST_F(DaemonsTest, LooksAtTheKeyWhileTheWatchSaysNothing) {
  stand_by();
  EXPECT_EQ(after(milliseconds(999)), "");
  EXPECT_EQ(after(milliseconds(1)), "read");
  EXPECT_EQ(leadership.look_again_at(), Time::max());
  EXPECT_EQ(key_is(KeyHolder{"a", 5, 1}), "");
  EXPECT_EQ(after(milliseconds(1000)), "read");
  EXPECT_EQ(key_is({}), "grant");
}

TEST_F(DaemonsTest, LooksAgainSoonWhereEtcdDidNotAnswer) {
  stand_by();
  after(milliseconds(1000));
  EXPECT_EQ(failed(ErrorCode::kUnavailable), "");
  EXPECT_EQ(after(milliseconds(200)), "read");
  EXPECT_EQ(key_is(KeyHolder{"b", 8, 2}), "watch from 9; probe b");
}

TEST_F(DaemonsTest, AnAnswerToALookIsIgnoredOnceTheKeyWasReadAnew) {
  stand_by();
  after(milliseconds(1000));
  const Ticket look = ticket;
  EXPECT_EQ(show(leadership.key_changed(now)), "read");
  EXPECT_EQ(show(leadership.key_read(look, view({}), now)), "");
  EXPECT_EQ(key_is(KeyHolder{"a", 5, 1}), "watch from 6");
  EXPECT_EQ(show(leadership.key_read(look, view({}), now)), "");
}

TEST_F(DaemonsTest, TakesItsOwnKeyAgainAfterADoubt) {
  lead();
  EXPECT_TRUE(after(kLength).starts_with("stop watching; step down"));
  EXPECT_EQ(show(leadership.leader_lost(now)), "read");
  EXPECT_EQ(key_is(KeyHolder{"me", 10, 7}), "grant");
  EXPECT_EQ(granted(8), "take lease=8 if=10");
  EXPECT_EQ(taken(12), "lead 12; watch from 13");
}

TEST_F(DaemonsTest, ProbesWhoeverLedAfterIt) {
  lead();
  after(kLength);
  show(leadership.leader_lost(now));
  EXPECT_EQ(key_is(KeyHolder{"b", 12, 9}), "watch from 13; probe b");
}

// Its own node's workers may still end.
TEST_F(LeadershipTest, AnAgentProbesItsOwnKeyOfBefore) {
  lead();
  after(kLength);
  show(leadership.leader_lost(now));
  EXPECT_EQ(key_is(KeyHolder{"me", 10, 7}), "watch from 11; probe me");
  EXPECT_EQ(refused(), "");
}

}  // namespace
}  // namespace ddprun::rendezvous
