// The rights of a leader, and the moments when it steps down. Virtual time.
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>

#include "tests/rendezvous/election/leadership_fixture.h"

namespace ddprun::rendezvous {
namespace {

// ---- the leader's lease ----

TEST_F(LeadershipTest, RenewsItsLease) {
  lead();
  EXPECT_EQ(leadership.look_again_at(), now + milliseconds(400));
  EXPECT_EQ(after(milliseconds(400)), "renew 7");
  EXPECT_EQ(leadership.look_again_at(), now + milliseconds(400));
}

TEST_F(LeadershipTest, StepsDownByItsOwnClockBeforeEtcdGivesTheKeyAway) {
  lead();
  EXPECT_EQ(after(milliseconds(2499)), "renew 7");
  EXPECT_EQ(after(milliseconds(1)),
            "stop watching; step down: etcd has not confirmed its lease in time");
  EXPECT_FALSE(leadership.leads());
  EXPECT_EQ(show(leadership.leader_lost(now)), "read");
}

// Counted from the answer, the lease would end when another may lead already.
TEST_F(LeadershipTest, CountsTheLeaseFromWhenItAskedForIt) {
  lead();
  const Time asked_at = now;
  now += milliseconds(2000);
  show(leadership.lease_renewed(7, kLength, asked_at, now));
  EXPECT_EQ(after(milliseconds(500)),
            "stop watching; step down: etcd has not confirmed its lease in time");
}

TEST_F(LeadershipTest, LeadsOnWithARenewedLease) {
  lead();
  after(milliseconds(400));
  show(leadership.lease_renewed(7, kLength, now, now));
  EXPECT_EQ(after(milliseconds(2400)), "renew 7");
  EXPECT_TRUE(leadership.leads());
}

TEST_F(LeadershipTest, AnAnswerOfLongAgoDoesNotShortenTheLease) {
  lead();
  const Time early = now;
  after(milliseconds(1000));
  show(leadership.lease_renewed(7, kLength, now, now));
  show(leadership.lease_renewed(7, kLength, early, now));
  after(milliseconds(2400));
  EXPECT_TRUE(leadership.leads());
}

TEST_F(LeadershipTest, ALateAnswerDoesNotBringALeaderBack) {
  lead();
  now += milliseconds(2500);
  EXPECT_FALSE(leadership.leads_at(now)) << "who asked left work undone";
  EXPECT_EQ(show(leadership.lease_renewed(7, kLength, now - milliseconds(100), now)),
            "stop watching; step down: etcd has not confirmed its lease in time");
}

TEST_F(LeadershipTest, StepsDownIfTheLeaseIsGone) {
  lead();
  EXPECT_EQ(show(leadership.lease_renewed(7, milliseconds(0), now, now)),
            "stop watching; step down: its lease in etcd is over");
}

TEST_F(LeadershipTest, StepsDownIfAnotherHoldsTheKey) {
  lead();
  EXPECT_EQ(show(leadership.key_changed(now)), "read");
  EXPECT_EQ(key_is(KeyHolder{"me", 10, 7}), "watch from 11");
  show(leadership.key_changed(now));
  EXPECT_EQ(key_is(KeyHolder{"b", 12, 8}),
            "stop watching; step down: another node has taken its key in etcd");
}

TEST_F(LeadershipTest, LooksAtItsKeyAgainWhereEtcdDidNotAnswer) {
  lead();
  EXPECT_EQ(show(leadership.key_changed(now)), "read");
  EXPECT_EQ(failed(ErrorCode::kUnavailable), "");
  EXPECT_EQ(after(milliseconds(200)), "read");
  EXPECT_EQ(key_is(KeyHolder{"me", 10, 7}), "watch from 11");
}

TEST_F(LeadershipTest, WatchesAgainFromTheRevisionOfItsLastLook) {
  lead();
  EXPECT_EQ(watch_ended(), "read");
  etcd_revision = 20;
  EXPECT_EQ(key_is(KeyHolder{"me", 10, 7}), "watch from 21");
}

TEST_F(LeadershipTest, StepsDownIfItsKeyIsGone) {
  lead();
  show(leadership.key_changed(now));
  EXPECT_EQ(key_is({}), "stop watching; step down: its key in etcd is gone");
}

// Its answers and its clock come in any order when it wakes up.
TEST_F(LeadershipTest, KnowsThatItWasSuspendedByWhateverItHearsFirst) {
  lead();
  show(leadership.publish(now));
  const Ticket record = ticket;
  show(leadership.key_changed(now));
  now += milliseconds(2500 + 200);
  const Ticket check = ticket;
  const auto hears = [&](const std::function<LeadershipActions(Leadership&)>& event) {
    Leadership woken = leadership;
    return show(event(woken));
  };
  const std::string expected = "stop watching; step down, suspended: ";
  const std::string another = expected + "another node has taken its key in etcd";
  EXPECT_EQ(hears([&](auto& woken) {
              return woken.key_read(check, {std::nullopt, 12}, now);
            }),
            expected + "its key in etcd is gone");
  EXPECT_EQ(hears([&](auto& woken) {
              return woken.key_read(check, {KeyHolder{"b", 12, 8}, 12}, now);
            }),
            another);
  EXPECT_EQ(hears([&](auto& woken) { return woken.record_written(record, false, now); }), another);
  EXPECT_EQ(hears([&](auto& woken) { return woken.lease_renewed(7, milliseconds(0), now, now); }),
            expected + "its lease in etcd is over");
  EXPECT_EQ(hears([&](auto& woken) {
              return woken.etcd_failed(check, {ErrorCode::kProtocol, "no"}, now);
            }),
            expected + "no");
  EXPECT_EQ(hears([&](auto& woken) { return woken.time_passed(now); }),
            expected + "etcd has not confirmed its lease in time");
}

TEST_F(LeadershipTest, IgnoresALeaseOfBefore) {
  lead();
  EXPECT_EQ(show(leadership.lease_renewed(3, milliseconds(0), now, now)), "");
  EXPECT_TRUE(leadership.leads());
}

// ---- what it publishes ----

TEST_F(LeadershipTest, PublishesOnlyWithItsOwnRevision) {
  lead();
  EXPECT_EQ(show(leadership.publish(now)), "write if=10");
  EXPECT_EQ(show(leadership.record_written(ticket, true, now)), "written");
}

TEST_F(LeadershipTest, StepsDownIfTheTransactionFindsAnother) {
  lead();
  show(leadership.publish(now));
  EXPECT_EQ(show(leadership.record_written(ticket, false, now)),
            "stop watching; step down: another node has taken its key in etcd");
  EXPECT_EQ(show(leadership.publish(now)), "");
}

TEST_F(LeadershipTest, WritesAgainWhileEtcdDoesNotAnswer) {
  lead();
  show(leadership.publish(now));
  EXPECT_EQ(failed(ErrorCode::kUnavailable), "");
  EXPECT_EQ(after(milliseconds(200)), "write if=10");
  EXPECT_EQ(show(leadership.record_written(ticket, true, now)), "written");
}

// A stopped process (SIGSTOP) that wakes up finds the answer of before, and the time.
TEST_F(LeadershipTest, AConfirmationAfterTheLeasePublishesNothing) {
  lead();
  show(leadership.publish(now));
  now += milliseconds(2500);
  EXPECT_EQ(show(leadership.record_written(ticket, true, now)),
            "stop watching; step down: etcd has not confirmed its lease in time");
}

TEST_F(LeadershipTest, AConfirmationOfAnEarlierRecordPublishesNothing) {
  lead();
  show(leadership.publish(now));
  const Ticket earlier = ticket;
  show(leadership.publish(now));
  EXPECT_EQ(show(leadership.record_written(earlier, true, now)), "");
  EXPECT_EQ(show(leadership.record_written(ticket, true, now)), "written");
}

TEST_F(LeadershipTest, AFollowerPublishesNothing) {
  follow();
  EXPECT_EQ(show(leadership.publish(now)), "");
}

}  // namespace
}  // namespace ddprun::rendezvous
