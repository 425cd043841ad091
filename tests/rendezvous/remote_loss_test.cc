// Sessions that end without an announcement: a process died, or the network went silent.
#include <gtest/gtest.h>

#include "tests/rendezvous/remote_fixture.h"

namespace ddprun::rendezvous {
namespace {

// Long enough that a busy machine does not make a beat's silence by itself.
constexpr milliseconds kTestBeat = std::chrono::seconds(1);

TEST_F(RemoteTest, TellsTheOthersAtOnceThatANodeDied) {
  HostSide side(loop, 3, {.token = "secret", .beat_every = kNoBeat});
  Relay relay(loop, side.port());
  TestNode here;
  TestNode there;
  TestNode dying;
  here.session = side.host->open_session(here.handler());
  here.session->join(make_node("a", 1));
  join(there, without_beats(side.port()), make_node("b", 1));
  join(dying, without_beats(relay.port()), make_node("c", 1));
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
  join(replacement, without_beats(side.port()), make_node("d", 1));
  ASSERT_TRUE(all_hear<RoundPublished>({&here, &there, &replacement}));
  EXPECT_EQ(here.last<RoundPublished>().round.number, 2);
}

TEST_F(RemoteTest, NoticesASilentNodeAndASilentHost) {
  HostSide side(loop, 2, {.token = "secret", .beat_every = kTestBeat});
  Relay relay(loop, side.port());
  RemoteOptions options = to(side.port());
  options.beat_every = kTestBeat;
  TestNode there;
  TestNode frozen;
  join(there, options, make_node("a"));
  options.port = relay.port();
  join(frozen, options, make_node("b"));
  ASSERT_TRUE(all_hear<RoundPublished>({&there, &frozen}));
  const auto start = steady_clock::now();
  relay.freeze();
  ASSERT_TRUE(all_hear<JobEnded>({&there}));
  EXPECT_GE(steady_clock::now() - start, kTestBeat);  // not before beats are missing
  ASSERT_TRUE(all_hear<SessionLost>({&frozen}));
  EXPECT_NE(frozen.error().find("the host was silent for 3 s"), std::string::npos)
      << frozen.error();
}

TEST_F(RemoteTest, KeepsAnIdleSessionAliveByBeats) {
  HostSide side(loop, 1, {.token = "secret", .beat_every = kTestBeat});
  RemoteOptions options = to(side.port());
  options.beat_every = kTestBeat;
  TestNode node;
  join(node, options, make_node("a"));
  ASSERT_TRUE(all_hear<RoundPublished>({&node}));
  EXPECT_FALSE(run_until(
      loop, [&] { return node.messages.size() > 1; }, (kSilenceTicks + 2) * kTestBeat));
  node.session->report_success(1);
  EXPECT_TRUE(all_hear<JobEnded>({&node}));
}

TEST_F(RemoteTest, TellsANodeAtOnceThatTheHostDied) {
  HostSide side(loop, 2, {.token = "secret", .beat_every = kNoBeat});
  TestNode here;
  TestNode node;
  here.session = side.host->open_session(here.handler());
  here.session->join(make_node("a"));
  join(node, without_beats(side.port()), make_node("b"));
  ASSERT_TRUE(all_hear<RoundPublished>({&here, &node}));
  side.end();
  ASSERT_TRUE(all_hear<SessionLost>({&node}));
  EXPECT_TRUE(node.lost_for(ErrorCode::kUnavailable));
  EXPECT_NE(node.error().find("the connection broke"), std::string::npos) << node.error();
}

}  // namespace
}  // namespace ddprun::rendezvous
