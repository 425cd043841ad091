// Cases that scripts cannot say well: limits, the answers of decide() at their edges, and the types
// of errors.
#include "rendezvous/core/membership.h"

#include <gtest/gtest.h>

#include "rendezvous/core/admission.h"

namespace ddprun::rendezvous {
namespace {

using std::chrono::nanoseconds;
using std::chrono::seconds;

const Time kStart = Time{} + std::chrono::hours(1);
constexpr RoundPolicy kElastic{
    .min_nodes = 2,
    .max_nodes = 4,
    .settings = {.join_timeout = seconds(600), .last_call = seconds(30)}};

Roster roster(int waiting, int returning = 0) {
  return {.waiting = waiting,
          .returning = returning,
          .waiting_since = kStart,
          .min_reached_at = kStart + seconds(10)};
}

NodeSpec node(const std::string& id) {
  NodeSpec spec;
  spec.node_id = id;
  spec.hostname = "host-" + id;
  return spec;
}

template <typename Kind>
const Kind& only_message(const Outcome& outcome) {
  EXPECT_EQ(outcome.deliveries.size(), 1U);
  return std::get<Kind>(outcome.deliveries.at(0).message);
}

TEST(Decide, NeverLooksAgainWhileNobodyWaits) {
  const Decision decision = decide(roster(0), kElastic, kStart + seconds(10000));
  EXPECT_EQ(decision.choice, RoundDecision::kWait);
  EXPECT_EQ(decision.reason, Reason::kNobody);
  EXPECT_EQ(decision.look_again_at, Time::max());
}

TEST(Decide, ClosesAtOnceWhenFull) {
  EXPECT_EQ(decide(roster(4), kElastic, kStart).reason, Reason::kFull);
}

TEST(Decide, GivesUpExactlyAtTheJoinTimeout) {
  const Time deadline = kStart + seconds(600);
  const Decision before = decide(roster(1), kElastic, deadline - nanoseconds(1));
  EXPECT_EQ(before.choice, RoundDecision::kWait);
  EXPECT_EQ(before.reason, Reason::kTooFew);
  EXPECT_EQ(before.look_again_at, deadline);
  EXPECT_EQ(decide(roster(1), kElastic, deadline).choice, RoundDecision::kGiveUp);
}

TEST(Decide, GivesOneLastCallFromTheMinimumOn) {
  const Time ends = kStart + seconds(40);
  const Decision before = decide(roster(3), kElastic, ends - nanoseconds(1));
  EXPECT_EQ(before.reason, Reason::kLastCall);
  EXPECT_EQ(before.look_again_at, ends);
  EXPECT_EQ(decide(roster(3), kElastic, ends).reason, Reason::kLastCallOver);
}

TEST(Decide, WaitsForNodesThatStillStopTheirWorkers) {
  // However long it takes: each ends by its own grace or lease.
  for (const int waiting : {0, 1, 2, 4})
    for (const int passed : {100, 600, 10'000}) {
      const Decision decision = decide(roster(waiting, 1), kElastic, kStart + seconds(passed));
      EXPECT_EQ(decision.choice, RoundDecision::kWait);
      EXPECT_EQ(decision.reason, Reason::kReturning);
      EXPECT_EQ(decision.look_again_at, Time::max());
    }
}

TEST(Decide, ClosesALaterRoundWhenAllAreBack) {
  Roster later = roster(2);
  later.is_first = false;
  EXPECT_EQ(decide(later, kElastic, kStart).reason, Reason::kAllBack);
  later.returning = 1;
  EXPECT_EQ(decide(later, kElastic, kStart).reason, Reason::kReturning);
  later = roster(1);
  later.is_first = false;
  EXPECT_EQ(decide(later, kElastic, kStart).reason, Reason::kTooFew);
}

TEST(Resize, NeedsRoomAndAWholeUnit) {
  RoundPolicy policy = kElastic;
  EXPECT_EQ(resize_at(4, 1, kStart, {}, policy), Time::max());
  EXPECT_EQ(resize_at(3, 0, kStart, {}, policy), Time::max());
  EXPECT_EQ(resize_at(3, 1, kStart, {}, policy), kStart + seconds(1));
  policy.settings.node_unit = 2;
  EXPECT_EQ(resize_at(2, 1, kStart, {}, policy), Time::max());
  EXPECT_EQ(resize_at(2, 2, kStart, {}, policy), kStart + seconds(1));
}

TEST(Resize, ComesNoSoonerThanTheIntervalAfterTheLast) {
  EXPECT_EQ(resize_at(2, 1, kStart, kStart - seconds(10), kElastic), kStart + seconds(20));
  EXPECT_EQ(resize_at(2, 1, kStart, kStart - seconds(100), kElastic), kStart + seconds(1));
}

TEST(Decide, EndsTheLastCallNoLaterThanTheJoinTimeout) {
  RoundPolicy policy = kElastic;
  policy.settings.join_timeout = seconds(20);
  EXPECT_EQ(decide(roster(2), policy, kStart + seconds(15)).look_again_at, kStart + seconds(20));
}

TEST(RoundSettings, TimesThatMustBeAboveZeroHaveTheirDefaults) {
  const RoundSettings without{.join_timeout = seconds(0),
                              .last_call = seconds(0),
                              .resize_wait = seconds(0),
                              .resize_interval = seconds(0),
                              .node_unit = 2};
  const RoundSettings usual{
      .resize_wait = seconds(0), .resize_interval = seconds(0), .node_unit = 2};
  EXPECT_EQ(with_defaults(without), usual) << "a resize may come at once";
  const RoundSettings whole{.join_timeout = seconds(5),
                            .last_call = seconds(4),
                            .resize_wait = seconds(3),
                            .resize_interval = seconds(2),
                            .node_unit = 1};
  EXPECT_EQ(with_defaults(whole), whole);
}

TEST(Membership, TellsErrorsApart) {
  Membership membership({.min_nodes = 2, .max_nodes = 2, .settings = {.join_timeout = seconds(4)}});
  NodeSpec ranked = node("r");
  ranked.node_rank = 1;
  membership.joined(1, ranked, {}, kStart);
  ranked.node_id = "s";
  EXPECT_EQ(only_message<SessionLost>(membership.joined(2, ranked, {}, kStart)).error.code(),
            ErrorCode::kRejected);
  ranked.node_rank = 2;
  EXPECT_EQ(only_message<SessionLost>(membership.joined(3, ranked, {}, kStart)).error.code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(only_message<SessionLost>(membership.joined(1, ranked, {}, kStart)).error.code(),
            ErrorCode::kProtocol);
  membership.joined(4, node("t"), {}, kStart);
  EXPECT_EQ(only_message<SessionLost>(membership.tick(kStart + seconds(4))).error.code(),
            ErrorCode::kTimedOut);
}

TEST(Membership, PublishesToAllInSeatOrder) {
  Membership membership({.min_nodes = 2, .max_nodes = 2});
  EXPECT_FALSE(membership.joined(7, node("a"), {"10.0.0.1"}, kStart).published);
  NodeSpec first = node("b");
  first.node_rank = 0;
  const Outcome outcome = membership.joined(9, first, {"10.0.0.2"}, kStart);
  ASSERT_TRUE(outcome.published);
  EXPECT_EQ(outcome.published->sessions, (std::vector<SessionId>{9, 7}));
  ASSERT_EQ(outcome.published->seats.size(), 2U);
  EXPECT_EQ(outcome.published->seats[1].node_rank, 1);
  EXPECT_EQ(outcome.published->round.master_addr, "10.0.0.2");
}

TEST(Membership, SaysWhatTheNextRoundWaitsFor) {
  Membership membership(
      {.min_nodes = 3, .max_nodes = 3, .settings = {.join_timeout = seconds(600)}});
  NodeSpec second = node("b");
  second.node_rank = 1;
  membership.joined(1, second, {}, kStart);
  EXPECT_EQ(
      membership.wait_status(kStart + seconds(10)),
      (WaitStatus{
          .have = 1, .min_nodes = 3, .max_nodes = 3, .ends_in = seconds(590), .missing = "0, 2"}));
  Membership elastic(kElastic);
  elastic.joined(1, node("a"), {}, kStart);
  elastic.joined(2, node("b"), {}, kStart + seconds(5));
  EXPECT_EQ(elastic.wait_status(kStart + seconds(5)), (WaitStatus{.awaits = Await::kLastCall,
                                                                  .have = 2,
                                                                  .min_nodes = 2,
                                                                  .max_nodes = 4,
                                                                  .ends_in = seconds(30)}));
  elastic.tick(kStart + seconds(35));
  EXPECT_EQ(elastic.wait_status(kStart + seconds(36)),
            (WaitStatus{.awaits = Await::kSeat, .have = 2, .min_nodes = 2, .max_nodes = 4}));
  elastic.joined(3, node("c"), {}, kStart + seconds(40));
  EXPECT_EQ(elastic.wait_status(kStart + seconds(40)), (WaitStatus{.awaits = Await::kResize,
                                                                   .have = 2,
                                                                   .min_nodes = 2,
                                                                   .max_nodes = 4,
                                                                   .ends_in = seconds(1)}));
}

TEST(Membership, RefusesOneNodeMoreThanItsLimit) {
  Membership membership({.min_nodes = kMaxNodes, .max_nodes = kMaxNodes});
  const auto last = static_cast<SessionId>(kMaxMembers);
  for (SessionId i = 1; i <= last; ++i) {
    const Outcome outcome = membership.joined(i, node(std::to_string(i)), {}, kStart);
    EXPECT_EQ(outcome.published.has_value(), i == kMaxNodes);
    EXPECT_TRUE(outcome.deliveries.empty());
  }
  const Outcome refused = membership.joined(last + 1, node("more"), {}, kStart);
  EXPECT_EQ(only_message<SessionLost>(refused).error.code(), ErrorCode::kLimit);
  // A refused node counts until its session is gone.
  membership.session_lost(last, "its connection ended", kStart);
  EXPECT_EQ(membership.joined(last + 2, node("2"), {}, kStart).deliveries.size(), 1U);
  membership.session_lost(last + 1, "its connection ended", kStart);
  membership.session_lost(last + 2, "its connection ended", kStart);
  EXPECT_TRUE(membership.joined(last + 3, node("3rd"), {}, kStart).deliveries.empty());
}

TEST(Membership, AcceptsWorkersUpToItsLimit) {
  Membership membership({});
  NodeSpec spec = node("a");
  spec.local_world_size = kMaxLocalWorldSize + 1;
  EXPECT_EQ(only_message<SessionLost>(membership.joined(1, spec, {}, kStart)).error.code(),
            ErrorCode::kInvalidArgument);
  spec.local_world_size = kMaxLocalWorldSize;
  const Outcome outcome = membership.joined(2, spec, {}, kStart);
  ASSERT_TRUE(outcome.published);
  EXPECT_EQ(outcome.published->round.world_size, kMaxLocalWorldSize);
}

TEST(Membership, CountsOneRestartPerRoundHoweverManyFail) {
  Membership membership({.min_nodes = 3, .max_nodes = 3});
  const auto join_all = [&] {
    for (SessionId session = 1; session <= 3; ++session) {
      NodeSpec spec = node(std::to_string(session));
      spec.max_restarts = 5;
      membership.joined(session, spec, {}, kStart);
    }
  };
  for (int round = 1; round <= 5; ++round) {
    join_all();
    EXPECT_EQ(membership.round_number(), round);
    for (SessionId session = 1; session <= 3; ++session)
      membership.failed(session, round, {}, kStart);
    EXPECT_EQ(membership.restart_count(), round);
    EXPECT_FALSE(membership.ended());
  }
  join_all();
  membership.failed(2, 6, {}, kStart);
  EXPECT_TRUE(membership.ended());
  EXPECT_EQ(membership.restart_count(), 5);
}

TEST(MembershipDeathTest, InsistsOnASensiblePolicy) {
  EXPECT_DEATH(Membership({.min_nodes = 0, .max_nodes = 1}), "min_nodes");
  EXPECT_DEATH(Membership({.min_nodes = 2, .max_nodes = 1}), "max_nodes");
  EXPECT_DEATH(Membership({.min_nodes = 1, .max_nodes = kMaxNodes + 1}), "kMaxNodes");
}

}  // namespace
}  // namespace ddprun::rendezvous
