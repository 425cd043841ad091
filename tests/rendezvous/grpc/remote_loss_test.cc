// Sessions that end without an announcement: a process died, or the network went silent.
#include <gtest/gtest.h>

#include "tests/rendezvous/grpc/remote_fixture.h"

namespace ddprun::rendezvous {
namespace {

TEST_F(RemoteTest, TellsTheOthersAtOnceThatANodeDied) {
  HostSide side(loop, 3, {.token = "secret", .keep_alive = kNoHeartbeats});
  Relay relay(loop, side.port());
  TestNode here;
  TestNode there;
  TestNode dying;
  here.session = side.host->open_session(here.handler());
  here.session->join(make_node("a", 1));
  join(there, to(side.port()), make_node("b", 1));
  join(dying, to(relay.port()), make_node("c", 1));
  ASSERT_TRUE(all_hear<RoundPublished>({&here, &there, &dying}));
  relay.cut();
  ASSERT_TRUE(all_hear<RoundBroken>({&here, &there}));
  EXPECT_EQ(there.last<RoundBroken>().cause.hostname, "host-c");
  // The node that was cut off notices it as well, and a replacement fills the round.
  ASSERT_TRUE(all_hear<SessionLost>({&dying}));
  EXPECT_TRUE(dying.lost_for(ErrorCode::kUnavailable)) << dying.error();
  TestNode replacement;
  here.session->join(make_node("a", 1));
  there.session->join(make_node("b", 1));
  join(replacement, to(side.port()), make_node("d", 1));
  ASSERT_TRUE(all_hear<RoundPublished>({&here, &there, &replacement}));
  EXPECT_EQ(here.last<RoundPublished>().round.number, 2);
}

// Shorter leases would end by themselves on a machine that stands still for some seconds.
constexpr KeepAlive kSlowHeartbeats{.interval = milliseconds(2000)};

TEST_F(RemoteTest, ASilentNodeIsFencedBeforeTheHostTakesItForLost) {
  HostSide side(loop, 2, {.token = "secret", .keep_alive = kSlowHeartbeats});
  Relay relay(loop, side.port());
  TestNode there;
  TestNode frozen;
  join(there, to(side.port()), make_node("a"));
  join(frozen, to(relay.port()), make_node("b"));
  ASSERT_TRUE(all_hear<RoundPublished>({&there, &frozen}));
  relay.freeze();
  ASSERT_TRUE(all_hear<SessionLost>({&frozen}));
  EXPECT_TRUE(frozen.last<SessionLost>().is_fenced);
  EXPECT_NE(frozen.error().find("the host was silent for 7 s"), std::string::npos)
      << frozen.error();
  EXPECT_FALSE(there.last_is<JobEnded>()) << "it may have live workers yet";
  ASSERT_TRUE(all_hear<JobEnded>({&there}));
  const std::string cause = there.last<JobEnded>().cause.message;
  EXPECT_NE(cause.find("(host-b) was lost: it was silent for 7.4 s"), std::string::npos) << cause;
}

TEST_F(RemoteTest, ALeaseIsRenewedByHeartbeats) {
  HostSide side(loop, 1, {.token = "secret", .keep_alive = kSlowHeartbeats});
  TestNode node;
  join(node, to(side.port()), make_node("a"));
  ASSERT_TRUE(all_hear<RoundPublished>({&node}));
  const auto lease = lease_for(kSlowHeartbeats, 1).length;
  EXPECT_FALSE(run_until(
      loop, [&] { return node.messages.size() > 1; }, lease + kFenceMargin + lease / 2));
  node.session->report_success(1);
  EXPECT_TRUE(all_hear<JobEnded>({&node}));
}

TEST_F(RemoteTest, TellsANodeAtOnceThatTheHostDied) {
  HostSide side(loop, 2, {.token = "secret", .keep_alive = kNoHeartbeats});
  TestNode here;
  TestNode node;
  here.session = side.host->open_session(here.handler());
  here.session->join(make_node("a"));
  join(node, to(side.port()), make_node("b"));
  ASSERT_TRUE(all_hear<RoundPublished>({&here, &node}));
  side.end();
  ASSERT_TRUE(all_hear<SessionLost>({&node}));
  EXPECT_TRUE(node.lost_for(ErrorCode::kUnavailable));
  EXPECT_NE(node.error().find("the connection broke"), std::string::npos) << node.error();
}

}  // namespace
}  // namespace ddprun::rendezvous
