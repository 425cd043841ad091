// Connections that break while both ends live, and how a dead end is told from them.
#include <gtest/gtest.h>

#include <vector>

#include "tests/rendezvous/grpc/remote_fixture.h"

namespace ddprun::rendezvous {
namespace {

constexpr milliseconds kMoment{200};

struct ReturnTest : RemoteTest {
  static ServiceOptions returning() {
    return {.token = "secret", .keep_alive = kNoHeartbeats, .resumes = true};
  }
  // Two nodes with a round, of which one is behind a relay.
  void form_round(std::uint16_t store_port, ServiceOptions options = returning()) {
    side.emplace(loop, 2, std::move(options));
    relay.emplace(loop, side->port());
    join(there, to(side->port()), make_node("a", 1));
    NodeSpec spec = make_node("b", 1);
    spec.store_port = store_port;
    join(behind, to(relay->port()), spec);
    ASSERT_TRUE(all_hear<RoundPublished>({&there, &behind}));
  }
  bool hears_of_a_break() {
    return run_until(
        loop, [&] { return there.last_is<RoundBroken>(); }, kMoment);
  }

  std::optional<HostSide> side;
  std::optional<Relay> relay;
  TestNode there;
  TestNode behind;
};

TEST_F(ReturnTest, ADeadNodeIsNoticedByThePortThatItHad) {
  int visits = 0;
  std::optional<Listener> store;
  store.emplace(loop, [&](const tcp::socket&) { ++visits; });
  form_round(store->port());
  ASSERT_TRUE(run_until(loop, [&] { return visits == 1; }));
  store.reset();
  relay->cut();
  EXPECT_TRUE(all_hear<RoundBroken>({&there}));
  EXPECT_EQ(there.last<RoundBroken>().cause.hostname, "host-b");
}

TEST_F(ReturnTest, ALivingNodeIsNotLostWithItsConnection) {
  Listener store(loop, [](const tcp::socket&) {});
  form_round(store.port());
  relay->cut();
  EXPECT_FALSE(hears_of_a_break());
}

// A firewall in front of it may refuse, as it did before.
TEST_F(ReturnTest, ARefusalWhereTheHostNeverGotInIsNoDeath) {
  const std::uint16_t closed = Listener(loop, [](const tcp::socket&) {}).port();
  form_round(closed);
  relay->cut();
  EXPECT_FALSE(hears_of_a_break());
}

// The host may not have read that the node is back, and its patience is that of before.
TEST_F(ReturnTest, WorkersDoNotOutliveTheirLeaseBecauseOfAConnectionThatBreaksAgain) {
  form_round(4000);
  Relay second(loop, side->port());
  RemoteOptions options = to(second.port());
  bool is_in = false;
  options.workers_until = steady_clock::now() + kMoment;
  options.on_admitted = [&](const std::string&, std::uint16_t) {
    is_in = true;
    second.freeze();
  };
  TestNode again;
  open_session(again, options);
  ASSERT_TRUE(all_hear<SessionLost>({&again}));
  EXPECT_TRUE(is_in);
  EXPECT_TRUE(again.last<SessionLost>().is_fenced) << again.error();
}

TEST_F(ReturnTest, ALeaseGoesOnWhenTheHostHasReadThatTheNodeIsBack) {
  form_round(4000);
  RemoteOptions options = to(side->port());
  options.workers_until = steady_clock::now() + 10 * kMoment;
  TestNode again;
  options.on_admitted = [&](const std::string&, std::uint16_t) {
    NodeSpec spec = make_node("b", 1);
    again.session->resume({.spec = spec,
                           .round = 1,
                           .seat = behind.last<RoundPublished>().seat.node_rank,
                           .node_count = 2,
                           .state = NodeState::kRunning});
  };
  open_session(again, options);
  EXPECT_FALSE(run_until(
      loop, [&] { return !again.messages.empty() || there.last_is<RoundBroken>(); }, 12 * kMoment))
      << again.error();
}

// The host has not noticed that the connection before is gone: it still counts at the limit.
TEST_F(ReturnTest, ANodeThatComesBackFindsRoomAtTheLimit) {
  ServiceOptions options = returning();
  options.max_calls = 2;
  form_round(4000, std::move(options));
  relay->freeze();
  TestNode again;
  open_session(again, to(side->port()));
  again.session->resume({.spec = make_node("b", 1),
                         .round = 1,
                         .seat = behind.last<RoundPublished>().seat.node_rank,
                         .node_count = 2,
                         .state = NodeState::kRunning});
  TestNode other;
  join(other, to(side->port()), make_node("c", 1));
  ASSERT_TRUE(all_hear<SessionLost>({&other}));
  EXPECT_EQ(other.last<SessionLost>().error.code(), ErrorCode::kLimit) << other.error();
  EXPECT_FALSE(hears_of_a_break());
  EXPECT_FALSE(again.last_is<SessionLost>()) << again.error();
}

// The host has noticed that its connection is gone, and keeps its place.
TEST_F(ReturnTest, NobodyTakesThePlaceOfANodeThatMayComeBack) {
  ServiceOptions options = returning();
  options.max_calls = 2;
  form_round(4000, std::move(options));
  const int seat = behind.last<RoundPublished>().seat.node_rank;
  relay->cut();
  ASSERT_TRUE(all_hear<SessionLost>({&behind}));
  TestNode other;
  join(other, to(side->port()), make_node("c", 1));
  ASSERT_TRUE(all_hear<SessionLost>({&other}));
  EXPECT_EQ(other.last<SessionLost>().error.code(), ErrorCode::kLimit) << other.error();
  TestNode again;
  open_session(again, to(side->port()));
  again.session->resume({.spec = make_node("b", 1),
                         .round = 1,
                         .seat = seat,
                         .node_count = 2,
                         .state = NodeState::kRunning});
  EXPECT_FALSE(hears_of_a_break());
  EXPECT_FALSE(again.last_is<SessionLost>()) << again.error();
}

// It was under way for long: its node gave that connection up, and came back over the next one.
TEST_F(ReturnTest, WhatAnOlderConnectionBringsLateIsNotBelieved) {
  form_round(4000);
  const ResumeRequest again{.spec = make_node("b", 1),
                            .round = 1,
                            .seat = behind.last<RoundPublished>().seat.node_rank,
                            .node_count = 2,
                            .state = NodeState::kRunning};
  TestNode older;
  TestNode newer;
  for (TestNode* const node : {&older, &newer}) {
    bool is_in = false;
    RemoteOptions options = to(side->port());
    options.on_admitted = [&](const std::string&, std::uint16_t) { is_in = true; };
    open_session(*node, options);
    ASSERT_TRUE(run_until(loop, [&] { return is_in; }));
  }
  ResumeRequest newest = again;
  newest.connection = 3;
  newer.session->resume(newest);
  ASSERT_TRUE(all_hear<SessionLost>({&behind}));  // it has come
  ResumeRequest late = again;
  late.connection = 2;
  late.state = NodeState::kStopping;
  older.session->resume(late);
  ASSERT_TRUE(all_hear<SessionLost>({&older}));
  EXPECT_TRUE(there.last_is<RoundPublished>());
  // Its first word, over the first connection of all.
  TestNode first;
  join(first, to(side->port()), make_node("b", 1));
  ASSERT_TRUE(all_hear<SessionLost>({&first}));
  EXPECT_TRUE(first.lost_for(ErrorCode::kUnavailable)) << first.error();
  newer.session->report_success(1);
  there.session->report_success(1);
  EXPECT_TRUE(all_hear<JobEnded>({&there, &newer}));
}

TEST_F(ReturnTest, TheHostSaysWhetherANodeMayComeBack) {
  for (const bool may_return : {false, true}) {
    HostSide host(loop, 1, {.token = "secret", .keep_alive = kNoHeartbeats, .resumes = may_return});
    Relay between(loop, host.port());
    TestNode node;
    join(node, to(between.port()), make_node("c"));
    ASSERT_TRUE(all_hear<RoundPublished>({&node}));
    between.cut();
    ASSERT_TRUE(all_hear<SessionLost>({&node}));
    EXPECT_EQ(node.last<SessionLost>().may_return, may_return);
  }
}

// The leader that follows knows for how many nodes the leases were made.
TEST_F(ReturnTest, LeasesAreMadeForNoMoreNodesThanTheNextLeaderKnows) {
  constexpr KeepAlive kHeartbeats{.interval = std::chrono::seconds(20)};
  HostSide host(
      loop, 1,
      {.token = "secret", .keep_alive = kHeartbeats, .expected_nodes = 5000, .most_nodes = 1});
  Relay between(loop, host.port());
  TestNode node;
  join(node, to(between.port()), make_node("d"));
  ASSERT_TRUE(all_hear<RoundPublished>({&node}));
  between.cut();
  ASSERT_TRUE(all_hear<SessionLost>({&node}));
  ASSERT_GT(lease_for(kHeartbeats, 5000).length, lease_for(kHeartbeats, 1).length);
  EXPECT_LE(node.last<SessionLost>().lease_ends,
            steady_clock::now() + lease_for(kHeartbeats, 1).length);
}

}  // namespace
}  // namespace ddprun::rendezvous
