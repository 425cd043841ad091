// A follower of daemons, which never leads. Virtual time.
#include <gtest/gtest.h>

#include "tests/rendezvous/election/leadership_fixture.h"

namespace ddprun::rendezvous {
namespace {

struct FollowsOnlyTest : LeadershipTest {
  FollowsOnlyTest()
      : LeadershipTest(LeadershipRules{
            .etcd = "e:2379", .follows_only = true, .look_while_following = milliseconds(4000)}) {}

  void follow() {
    show(leadership.start(now));
    key_is(KeyHolder{"a", 5, 1});
    ASSERT_EQ(probed(), "follow a");
    ASSERT_EQ(show(leadership.followed(now)), "");
  }
};

TEST_F(FollowsOnlyTest, WaitsForALeaderAndTakesNoKey) {
  EXPECT_EQ(show(leadership.start(now)), "read");
  etcd_revision = 4;
  EXPECT_EQ(key_is({}), "watch from 5");
  EXPECT_EQ(changed(), "read");
  EXPECT_EQ(key_is(KeyHolder{"a", 5, 1}), "watch from 6; probe a");
  EXPECT_EQ(refused(), "") << "its process is dead, and another one takes the key";
  EXPECT_EQ(after(milliseconds(500)), "read");
}

TEST_F(FollowsOnlyTest, GoesToTheNextLeaderWhileThePreviousOneStandsStill) {
  follow();
  EXPECT_EQ(changed(), "read");
  EXPECT_EQ(key_is(KeyHolder{"b", 8, 2}), "watch from 9; probe b");
  EXPECT_EQ(probed(), "follow b");
  EXPECT_EQ(show(leadership.followed(now)), "");
}

TEST_F(FollowsOnlyTest, WatchesAnewWhoWasLetInWhileItReadTheKey) {
  show(leadership.start(now));
  key_is(KeyHolder{"a", 5, 1});
  probed();
  EXPECT_EQ(changed(), "read");
  EXPECT_EQ(show(leadership.followed(now)), "watch from 6");
}

// The watch was lost.
TEST_F(FollowsOnlyTest, LooksAtTheKeyWhileItHasALeader) {
  follow();
  EXPECT_EQ(after(milliseconds(4000)), "read");
  EXPECT_EQ(key_is(KeyHolder{"a", 5, 1}), "");
  EXPECT_EQ(after(milliseconds(3999)), "");
  EXPECT_EQ(after(milliseconds(1)), "read");
  EXPECT_EQ(key_is(KeyHolder{"b", 8, 2}), "watch from 9; probe b");
}

TEST_F(FollowsOnlyTest, LeavesASickEtcdAloneWhileItHasALeader) {
  follow();
  EXPECT_EQ(after(milliseconds(4000)), "read");
  for (int looks = 0; looks < 3; ++looks) {
    const auto code = looks == 1 ? ErrorCode::kRejected : ErrorCode::kUnavailable;
    EXPECT_EQ(failed(code), "");
    EXPECT_EQ(after(milliseconds(3999)), "");
    EXPECT_EQ(after(milliseconds(1)), "read");
  }
  EXPECT_EQ(key_is(KeyHolder{"b", 8, 2}), "watch from 9; probe b");
}

TEST_F(FollowsOnlyTest, WatchesAgainWithItsNextLook) {
  follow();
  EXPECT_EQ(watch_ended(), "") << "all nodes of an etcd without a leader would ask in one moment";
  EXPECT_EQ(after(milliseconds(4000)), "read");
  etcd_revision = 30;
  EXPECT_EQ(key_is(KeyHolder{"a", 5, 1}), "watch from 31");
  EXPECT_EQ(after(milliseconds(4000)), "read");
  EXPECT_EQ(key_is(KeyHolder{"a", 5, 1}), "");
}

TEST_F(FollowsOnlyTest, WatchesAgainAfterAChangeThatItCouldNotRead) {
  follow();
  EXPECT_EQ(changed(), "read");
  EXPECT_EQ(failed(ErrorCode::kUnavailable), "");
  EXPECT_EQ(after(milliseconds(4000)), "read");
  EXPECT_EQ(key_is(KeyHolder{"a", 5, 1}), "watch from 6");
}

// Its own may stand still.
TEST_F(FollowsOnlyTest, AsksSoonWhereAnotherLeads) {
  follow();
  EXPECT_EQ(changed(), "read");
  EXPECT_EQ(key_is(KeyHolder{"b", 8, 2}), "watch from 9; probe b");
  EXPECT_EQ(silent(), "");
  EXPECT_EQ(after(milliseconds(500)), "read");
  EXPECT_EQ(failed(ErrorCode::kUnavailable), "");
  EXPECT_EQ(after(milliseconds(200)), "read");
}

TEST_F(FollowsOnlyTest, AsksSoonWithoutALeader) {
  follow();
  EXPECT_EQ(show(leadership.leader_lost(now)), "read");
  EXPECT_EQ(failed(ErrorCode::kUnavailable), "");
  EXPECT_EQ(after(milliseconds(200)), "read");
}

TEST_F(FollowsOnlyTest, StaysWhereTheKeyIsAsItWas) {
  follow();
  EXPECT_EQ(changed(), "read");
  EXPECT_EQ(key_is(KeyHolder{"a", 5, 1}), "watch from 6");
}

TEST_F(FollowsOnlyTest, OutlivesEtcdWhileItHasALeader) {
  follow();
  changed();
  for (int hours = 0; hours < 3; ++hours) {
    const auto code = hours == 1 ? ErrorCode::kRejected : ErrorCode::kUnavailable;
    EXPECT_EQ(show(leadership.etcd_failed(ticket, {code, "e: no"}, now)), "");
    EXPECT_EQ(after(std::chrono::hours(1)), "read");
  }
  EXPECT_EQ(key_is(KeyHolder{"a", 5, 1}), "watch from 6");
  // Without one its patience begins anew.
  EXPECT_EQ(show(leadership.leader_lost(now)), "read");
  now += std::chrono::seconds(600);
  EXPECT_TRUE(show(leadership.etcd_failed(ticket, {ErrorCode::kUnavailable, "e: no"}, now))
                  .starts_with("stop watching; give up: "));
}

}  // namespace
}  // namespace ddprun::rendezvous
