// Rounds of remote nodes: service and client from the first join to the last message.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/rendezvous/grpc/remote_fixture.h"

namespace ddprun::rendezvous {
namespace {

TEST_F(RemoteTest, FormsARoundThatIsEqualOnAllNodes) {
  HostSide side(loop, 3);
  TestNode here;
  TestNode b;
  TestNode c;
  here.session = side.host->open_session(here.handler());
  here.session->join(make_node("a"));
  join(b, to(side.port()), make_node("b"));
  join(c, to(side.port()), make_node("c"));
  ASSERT_TRUE(all_hear<RoundPublished>({&here, &b, &c})) << b.error();
  const Round& round = here.last<RoundPublished>().round;
  EXPECT_EQ(round.world_size, 3);
  EXPECT_EQ(round.master_addr, "127.0.0.1");
  EXPECT_EQ(b.last<RoundPublished>().round, round);
  EXPECT_EQ(c.last<RoundPublished>().round, round);
  EXPECT_EQ(here.last<RoundPublished>().seat.node_rank, 0);
  EXPECT_EQ(b.last<RoundPublished>().seat.node_rank + c.last<RoundPublished>().seat.node_rank, 3);
  here.session->report_success(1);
  b.session->report_success(1);
  c.session->report_success(1);
  ASSERT_TRUE(all_hear<JobEnded>({&here, &b, &c}));
  EXPECT_TRUE(b.last<JobEnded>().succeeded);
}

TEST_F(RemoteTest, RestartsAllNodesAndThenEndsForAll) {
  HostSide side(loop, 2);
  TestNode a;
  TestNode b;
  join(a, to(side.port()), make_node("a", 1));
  join(b, to(side.port()), make_node("b", 1));
  ASSERT_TRUE(all_hear<RoundPublished>({&a, &b}));
  b.session->report_failure(1, make_failure("boom"));
  ASSERT_TRUE(all_hear<RoundBroken>({&a, &b}));
  EXPECT_EQ(a.last<RoundBroken>().cause, make_failure("boom"));
  a.session->join(make_node("a", 1));
  b.session->join(make_node("b", 1));
  ASSERT_TRUE(all_hear<RoundPublished>({&a, &b}));
  EXPECT_EQ(a.last<RoundPublished>().round.restart_count, 1);
  a.session->report_failure(2, make_failure("again"));
  ASSERT_TRUE(all_hear<JobEnded>({&a, &b}));
  EXPECT_EQ(b.last<JobEnded>().cause, make_failure("again"));
}

// A host for many nodes has several queues. It ends while all calls are open.
TEST_F(RemoteTest, SpreadsTheCallsOverTheQueuesOfALargeHost) {
  constexpr int kNodes = 40;
  HostSide side(loop, kNodes,
                {.token = "secret", .keep_alive = kNoHeartbeats, .expected_nodes = 10'000});
  std::vector<TestNode> nodes(kNodes);
  const auto all = [&](auto last_is) {
    return run_until(loop, [&] { return std::ranges::all_of(nodes, last_is); });
  };
  for (int i = 0; i < kNodes; ++i)
    join(nodes[static_cast<std::size_t>(i)], to(side.port()),
         make_node("n" + std::to_string(i), 1));
  ASSERT_TRUE(all([](const TestNode& node) { return node.last_is<RoundPublished>(); }));
  nodes.back().session->report_failure(1, make_failure("boom"));
  ASSERT_TRUE(all([](const TestNode& node) { return node.last_is<RoundBroken>(); }));
  side.end();
  ASSERT_TRUE(all([](const TestNode& node) { return node.last_is<SessionLost>(); }));
}

TEST_F(RemoteTest, CarriesTheMembershipsRefusal) {
  HostSide side(loop, 2);
  NodeSpec out_of_range = make_node("a");
  out_of_range.node_rank = 2;
  TestNode node;
  join(node, to(side.port()), out_of_range);
  ASSERT_TRUE(run_until(loop, [&] { return node.last_is<SessionLost>(); }));
  EXPECT_TRUE(node.lost_for(ErrorCode::kInvalidArgument));
  EXPECT_NE(node.error().find("node rank 2 is out of range"), std::string::npos) << node.error();
}

TEST_F(RemoteTest, TellsANodeThatTooFewCame) {
  HostSide side(loop, 2, {.token = "secret"}, milliseconds(200));
  TestNode node;
  join(node, to(side.port()), make_node("a"));
  ASSERT_TRUE(run_until(loop, [&] { return node.last_is<SessionLost>(); }));
  EXPECT_TRUE(node.lost_for(ErrorCode::kTimedOut));
  EXPECT_EQ(node.error(), "rendezvous: 1 of 2 nodes joined within join_timeout=0.2 s");
}

TEST_F(RemoteTest, SendsTheLastMessageEvenWhenTheHostEndsWithIt) {
  HostSide side(loop, 3);
  TestNode b;
  TestNode c;
  std::unique_ptr<Session> here;
  bool started = false;
  here = side.host->open_session([&](const HostMessage& message) {
    started = true;
    if (!std::holds_alternative<JobEnded>(message)) return;
    here.reset();
    side.end();
  });
  here->join(make_node("a"));
  join(b, to(side.port()), make_node("b"));
  join(c, to(side.port()), make_node("c"));
  ASSERT_TRUE(all_hear<RoundPublished>({&b, &c}));
  b.session->report_success(1);
  c.session->report_success(1);
  here->report_success(1);
  ASSERT_TRUE(all_hear<JobEnded>({&b, &c})) << b.error() << c.error();
  EXPECT_TRUE(b.last<JobEnded>().succeeded && c.last<JobEnded>().succeeded);
}

TEST_F(RemoteTest, TellsTheOthersWhenTheHostsOwnNodeLeavesAndEnds) {
  HostSide side(loop, 2);
  TestNode here;
  TestNode there;
  here.session = side.host->open_session(here.handler());
  here.session->join(make_node("a"));
  join(there, to(side.port()), make_node("b"));
  ASSERT_TRUE(all_hear<RoundPublished>({&here, &there}));
  here.session->leave(make_failure("SIGTERM"));
  here.session.reset();
  side.end();
  ASSERT_TRUE(all_hear<JobEnded>({&there})) << there.error();
  EXPECT_EQ(there.last<JobEnded>().cause, make_failure("SIGTERM"));
}

// The host is on a loop and a thread of its own. The end of the session blocks this thread until
// the receipt comes.
TEST_F(RemoteTest, WhatALeavingNodeSaidReachesTheHostBeforeTheSessionEnds) {
  std::promise<std::uint16_t> port;
  std::promise<Failure> told;
  std::thread other([&] {
    asio::io_context host_loop{1};
    HostSide side(host_loop, 2);
    TestNode here;
    here.session = side.host->open_session(here.handler());
    here.session->join(make_node("a"));
    port.set_value(side.port());
    EXPECT_TRUE(run_until(host_loop, [&] { return here.last_is<JobEnded>(); }));
    told.set_value(here.last_is<JobEnded>() ? here.last<JobEnded>().cause : Failure{});
  });
  TestNode node;
  RemoteOptions options = to(port.get_future().get());
  options.leave_limit = std::chrono::seconds(60);
  join(node, options, make_node("b"));
  EXPECT_TRUE(all_hear<RoundPublished>({&node}));
  node.session->leave(make_failure("SIGTERM"));
  const auto start = steady_clock::now();
  node.session.reset();
  EXPECT_LT(steady_clock::now() - start, kTestLimit);  // by the receipt
  EXPECT_EQ(told.get_future().get(), make_failure("SIGTERM"));
  other.join();
}

// A host that stands still gives no receipt. Another leads now, and the workers of the node still
// run.
TEST_F(RemoteTest, NobodyWaitsForTheReceiptOfAHostThatLeadsNoMore) {
  HostSide side(loop, 1);
  RemoteOptions options = to(side.port());
  options.leave_limit = std::chrono::hours(1);
  TestNode node;
  join(node, options, make_node("a"));
  ASSERT_TRUE(all_hear<RoundPublished>({&node}));
  node.session->leave(make_failure("SIGTERM"));
  node.session->abandon();
  // This thread's loop does not run: an end without abandon() would wait for an hour.
  node.session.reset();
}

}  // namespace
}  // namespace ddprun::rendezvous
