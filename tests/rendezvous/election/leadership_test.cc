// Who leads, on virtual time. Each event's actions are compared as text, so that a test reads like
// the course of an election.
#include "rendezvous/election/leadership.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

namespace ddprun::rendezvous {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLength{3000};

struct Show {
  std::string operator()(const ReadKey& /*it*/) const { return "read"; }
  std::string operator()(const GrantLease& /*it*/) const { return "grant"; }
  std::string operator()(const TakeKey& it) const {
    return fmt::format("take lease={} if={}", it.lease, it.if_revision);
  }
  std::string operator()(const Knock& it) const { return "knock " + it.value; }
  std::string operator()(const Follow& it) const { return "follow " + it.value; }
  std::string operator()(const WatchKey& it) const {
    return fmt::format("watch from {}", it.from_revision);
  }
  std::string operator()(const StopWatching& /*it*/) const { return "stop watching"; }
  std::string operator()(const Lead& it) const { return fmt::format("lead {}", it.revision); }
  std::string operator()(const RenewLease& it) const { return fmt::format("renew {}", it.lease); }
  std::string operator()(const WriteRecord& it) const {
    return fmt::format("write if={}", it.if_revision);
  }
  std::string operator()(const RecordWritten& /*it*/) const { return "written"; }
  std::string operator()(const StepDown& it) const { return "step down: " + it.why; }
  std::string operator()(const GiveUp& it) const { return "give up: " + it.error.message(); }
};

// A node's Leadership. It keeps the ticket of the last question, and the clock.
struct LeadershipTest : testing::Test {
  Leadership leadership{{.etcd = "e:2379"}};
  Time now = Time() + std::chrono::hours(1);
  Ticket ticket = 0;

  std::string show(const LeadershipActions& actions) {
    std::vector<std::string> texts;
    for (const LeadershipAction& action : actions) {
      texts.push_back(std::visit(Show{}, action));
      std::visit(
          [this](const auto& one) {
            if constexpr (requires { one.ticket; }) ticket = one.ticket;
          },
          action);
    }
    return fmt::format("{}", fmt::join(texts, "; "));
  }
  std::string start() { return show(leadership.start(now)); }
  std::string key_is(const std::optional<KeyHolder>& holder) {
    return show(leadership.key_read(ticket, holder, now));
  }
  std::string granted(LeaseId lease) {
    return show(leadership.lease_granted(ticket, lease, kLength, now, now));
  }
  std::string taken(std::int64_t revision) {
    return show(leadership.key_taken(ticket, revision, {}, now));
  }
  std::string not_taken(const std::optional<KeyHolder>& holder) {
    return show(leadership.key_taken(ticket, {}, holder, now));
  }
  std::string knocked() { return show(leadership.knocked(ticket, now)); }
  std::string refused() { return show(leadership.knocked_in_vain(ticket, true, now)); }
  std::string silent() { return show(leadership.knocked_in_vain(ticket, false, now)); }
  std::string failed(ErrorCode code, const std::string& what = "e: no") {
    return show(leadership.etcd_failed(ticket, {code, what}, now));
  }
  std::string after(milliseconds time) {
    now += time;
    return show(leadership.time_passed(now));
  }
  // A leader whose key has revision 10, and lease 7.
  void lead() {
    start();
    key_is({});
    granted(7);
    ASSERT_EQ(taken(10), "lead 10; watch from 11");
  }
  void follow() {
    start();
    key_is(KeyHolder{"a", 5, 1});
    knocked();
    ASSERT_EQ(show(leadership.followed(now)), "stop watching");
  }
};

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
  EXPECT_EQ(not_taken(KeyHolder{"a", 9, 3}), "knock a");
  EXPECT_EQ(knocked(), "follow a; watch from 10");
  EXPECT_EQ(show(leadership.followed(now)), "stop watching");
  EXPECT_EQ(leadership.look_again_at(), Time::max());
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
  start();
  EXPECT_EQ(key_is(KeyHolder{"a", 5, 1}), "knock a");
  EXPECT_EQ(refused(), "grant");
  EXPECT_EQ(granted(7), "take lease=7 if=5");
  EXPECT_EQ(taken(11), "lead 11; watch from 12");
}

TEST_F(LeadershipTest, FollowsAnotherThatTookOverFirst) {
  start();
  key_is(KeyHolder{"a", 5, 1});
  refused();
  granted(7);
  EXPECT_EQ(not_taken(KeyHolder{"b", 6, 2}), "knock b");
}

TEST_F(LeadershipTest, WaitsForTheLeaseOfASilentLeader) {
  start();
  key_is(KeyHolder{"a", 5, 1});
  EXPECT_EQ(silent(), "watch from 6");
  EXPECT_EQ(after(milliseconds(499)), "");
  EXPECT_EQ(after(milliseconds(1)), "read");
  EXPECT_EQ(key_is(KeyHolder{"a", 5, 1}), "knock a");
  EXPECT_EQ(silent(), "watch from 6");
  EXPECT_EQ(show(leadership.key_changed(now)), "read");
  EXPECT_EQ(key_is({}), "grant");
}

TEST_F(LeadershipTest, IgnoresAnAnswerToAnOlderQuestion) {
  start();
  const Ticket old = ticket;
  failed(ErrorCode::kUnavailable);
  after(milliseconds(200));
  EXPECT_EQ(show(leadership.key_read(old, {}, now)), "");
  EXPECT_EQ(key_is({}), "grant");
}

// ---- followers ----

TEST_F(LeadershipTest, LooksForTheNextLeaderWhenItsOwnIsLost) {
  follow();
  EXPECT_EQ(show(leadership.leader_lost(now)), "read");
}

TEST_F(LeadershipTest, LeavesASessionThatIsBeingOpenedAlone) {
  start();
  key_is(KeyHolder{"a", 5, 1});
  knocked();
  EXPECT_EQ(show(leadership.key_changed(now)), "read");
  EXPECT_EQ(key_is(KeyHolder{"a", 5, 1}), "watch from 6");
  EXPECT_EQ(show(leadership.key_changed(now)), "read");
  EXPECT_EQ(key_is(KeyHolder{"b", 8, 2}), "knock b");
}

TEST_F(LeadershipTest, RestsAfterALeaderThatLetNobodyIn) {
  start();
  key_is(KeyHolder{"a", 5, 1});
  knocked();
  EXPECT_EQ(show(leadership.leader_lost(now)), "");
  EXPECT_EQ(after(milliseconds(200)), "read");
}

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

TEST_F(LeadershipTest, StepsDownIfItsKeyIsGone) {
  lead();
  show(leadership.key_changed(now));
  EXPECT_EQ(key_is({}), "stop watching; step down: its key in etcd is gone");
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

}  // namespace
}  // namespace ddprun::rendezvous
