// Service and client over loopback TCP, through connections accepted elsewhere, as the agent uses
// them.
#include <gtest/gtest.h>

#include <boost/asio/steady_timer.hpp>
#include <future>
#include <optional>
#include <thread>

#include "rendezvous/client.h"
#include "rendezvous/host.h"
#include "rendezvous/service.h"
#include "tests/rendezvous/relay.h"
#include "tests/rendezvous/support.h"

namespace ddprun::rendezvous {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kSoon{1000};  // what "at once" is held to on a busy machine

// A host with its listening port. Parts may be ended one by one.
struct HostSide {
  HostSide(asio::io_context& loop, int nodes, ServiceOptions options = {.token = "secret"},
           milliseconds join_timeout = std::chrono::seconds(60)) {
    host.emplace(loop,
                 Policy{.min_nodes = nodes, .max_nodes = nodes, .join_timeout = join_timeout});
    service.emplace(loop, *host, std::move(options));
    listener.emplace(loop, [this](tcp::socket socket) { service->adopt(socket.release()); });
  }
  std::uint16_t port() const { return listener->port(); }
  void end() {
    listener.reset();
    service.reset();
  }

  std::optional<Host> host;
  std::optional<Service> service;
  std::optional<Listener> listener;
};

struct RemoteTest : testing::Test {
  asio::io_context loop{1};

  static RemoteOptions to(std::uint16_t port) {
    return {.host = "127.0.0.1",
            .port = port,
            .token = "secret",
            .read_timeout = std::chrono::seconds(10)};
  }
  void attend(TestNode& node, const RemoteOptions& options) {
    node.link = attend_remotely(loop, options, node.handler());
  }
  void join(TestNode& node, const RemoteOptions& options, const NodeSpec& spec) {
    attend(node, options);
    node.link->join(spec);
  }
  template <typename Kind>
  bool all_hear(std::initializer_list<const TestNode*> nodes, milliseconds limit = kTestLimit) {
    return run_until(
        loop,
        [&] {
          return std::ranges::all_of(nodes, [](const TestNode* n) { return n->last_is<Kind>(); });
        },
        limit);
  }
};

TEST_F(RemoteTest, FormsARoundThatIsEqualOnAllNodes) {
  HostSide side(loop, 3);
  TestNode here;
  TestNode b;
  TestNode c;
  here.link = side.host->attend(here.handler());
  here.link->join(make_node("a"));
  join(b, to(side.port()), make_node("b"));
  join(c, to(side.port()), make_node("c"));
  ASSERT_TRUE(all_hear<RoundPublished>({&here, &b, &c})) << b.error();
  const Round& round = here.last<RoundPublished>().round;
  EXPECT_EQ(round.world_size, 3);
  EXPECT_EQ(round.master_addr, "127.0.0.1");
  EXPECT_EQ(b.last<RoundPublished>().round, round);
  EXPECT_EQ(c.last<RoundPublished>().round, round);
  EXPECT_EQ(here.last<RoundPublished>().seat, 0);
  EXPECT_EQ(b.last<RoundPublished>().seat + c.last<RoundPublished>().seat, 3);
  here.link->report_success(1);
  b.link->report_success(1);
  c.link->report_success(1);
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
  b.link->report_failure(1, make_failure("boom"));
  ASSERT_TRUE(all_hear<RoundBroken>({&a, &b}));
  EXPECT_EQ(a.last<RoundBroken>().cause, make_failure("boom"));
  a.link->join(make_node("a", 1));
  b.link->join(make_node("b", 1));
  ASSERT_TRUE(all_hear<RoundPublished>({&a, &b}));
  EXPECT_EQ(a.last<RoundPublished>().round.restart_count, 1);
  a.link->report_failure(2, make_failure("again"));
  ASSERT_TRUE(all_hear<JobEnded>({&a, &b}));
  EXPECT_EQ(b.last<JobEnded>().cause, make_failure("again"));
}

TEST_F(RemoteTest, RefusesAWrongOrMissingToken) {
  HostSide side(loop, 1);
  for (const char* token : {"", "wrong!", "secret2", "secre"}) {
    RemoteOptions options = to(side.port());
    options.token = token;
    TestNode node;
    join(node, options, make_node("a"));
    ASSERT_TRUE(run_until(loop, [&] { return node.last_is<LinkLost>(); })) << token;
    EXPECT_TRUE(node.lost_for(ErrorCode::kRejected));
    EXPECT_EQ(node.error(), "rendezvous at 127.0.0.1:" + std::to_string(side.port()) +
                                ": refused: the job's token is missing or wrong");
  }
}

TEST_F(RemoteTest, RefusesANodeOfAnotherJob) {
  HostSide side(loop, 1, {.token = "secret", .rdzv_id = "job one"});
  RemoteOptions options = to(side.port());
  options.rdzv_id = "job \xE9 two";
  TestNode node;
  join(node, options, make_node("a"));
  ASSERT_TRUE(run_until(loop, [&] { return node.last_is<LinkLost>(); }));
  EXPECT_TRUE(node.lost_for(ErrorCode::kRejected));
  EXPECT_NE(node.error().find("rdzv_id=job one, not job \xE9 two"), std::string::npos)
      << node.error();
  options.rdzv_id = "job one";
  TestNode right;
  join(right, options, make_node("a"));
  EXPECT_TRUE(all_hear<RoundPublished>({&right})) << right.error();
}

TEST_F(RemoteTest, CarriesTheMembershipsRefusal) {
  HostSide side(loop, 2);
  NodeSpec out_of_range = make_node("a");
  out_of_range.node_rank = 2;
  TestNode node;
  join(node, to(side.port()), out_of_range);
  ASSERT_TRUE(run_until(loop, [&] { return node.last_is<LinkLost>(); }));
  EXPECT_TRUE(node.lost_for(ErrorCode::kInvalidArgument));
  EXPECT_NE(node.error().find("node rank 2 is out of range"), std::string::npos) << node.error();
}

TEST_F(RemoteTest, TellsANodeThatTooFewCame) {
  HostSide side(loop, 2, {.token = "secret"}, milliseconds(200));
  TestNode node;
  join(node, to(side.port()), make_node("a"));
  ASSERT_TRUE(run_until(loop, [&] { return node.last_is<LinkLost>(); }));
  EXPECT_TRUE(node.lost_for(ErrorCode::kTimedOut));
  EXPECT_EQ(node.error(), "rendezvous: 1 of 2 nodes joined within join_timeout=0.2 s");
}

TEST_F(RemoteTest, RefusesOptionsThatNoHostCouldRead) {
  RemoteOptions options = to(1);
  options.token = "two\nlines";
  TestNode node;
  attend(node, options);
  EXPECT_TRUE(node.news.empty());  // posted, as all news
  ASSERT_TRUE(run_until(loop, [&] { return node.last_is<LinkLost>(); }));
  EXPECT_TRUE(node.lost_for(ErrorCode::kInvalidArgument));
  options = to(1);
  options.rdzv_id = std::string(256, 'x');
  attend(node, options);
  EXPECT_TRUE(run_until(loop, [&] { return node.news.size() == 2; }));
  EXPECT_NE(node.error().find("rdzv_id has 256 bytes"), std::string::npos) << node.error();
}

TEST_F(RemoteTest, WaitsForAHostThatStartsLater) {
  tcp::acceptor late(loop);  // bound, so the port is ours; not listening, so connects are refused
  late.open(tcp::v4());
  late.bind(any_loopback_port());
  Host host(loop, {});
  Service service(loop, host, {.token = "secret"});
  TestNode node;
  join(node, to(late.local_endpoint().port()), make_node("a"));
  asio::steady_timer start(loop, milliseconds(400));
  start.async_wait([&](const boost::system::error_code&) {
    late.listen();
    late.async_accept([&](const boost::system::error_code&, tcp::socket socket) {
      service.adopt(socket.release());
    });
  });
  EXPECT_TRUE(all_hear<RoundPublished>({&node})) << node.error();
}

TEST_F(RemoteTest, GivesUpOnAHostThatRefusesConnections) {
  tcp::acceptor closed(loop);
  closed.open(tcp::v4());
  closed.bind(any_loopback_port());
  RemoteOptions options = to(closed.local_endpoint().port());
  options.read_timeout = milliseconds(400);
  TestNode node;
  const auto start = steady_clock::now();
  join(node, options, make_node("a"));
  ASSERT_TRUE(run_until(loop, [&] { return node.last_is<LinkLost>(); }));
  EXPECT_GE(steady_clock::now() - start, milliseconds(400));
  EXPECT_LT(steady_clock::now() - start, milliseconds(400) + kSoon);
  EXPECT_TRUE(node.lost_for(ErrorCode::kTimedOut));
  const std::string expected = "rendezvous at 127.0.0.1:" + std::to_string(options.port) +
                               ": nobody answered within read_timeout=0.4 s (";
  EXPECT_EQ(node.error().substr(0, expected.size()), expected);
  EXPECT_NE(node.error().find("refused"), std::string::npos) << node.error();
}

TEST_F(RemoteTest, GivesUpOnAPeerThatNeverAnswers) {
  std::vector<tcp::socket> mute;
  Listener listener(loop, [&](tcp::socket socket) { mute.push_back(std::move(socket)); });
  RemoteOptions options = to(listener.port());
  options.read_timeout = milliseconds(400);
  TestNode node;
  join(node, options, make_node("a"));
  ASSERT_TRUE(run_until(loop, [&] { return node.last_is<LinkLost>(); }));
  EXPECT_TRUE(node.lost_for(ErrorCode::kTimedOut)) << node.error();
  EXPECT_FALSE(mute.empty());
}

TEST_F(RemoteTest, GivesUpOnANameThatNobodyKnows) {
  RemoteOptions options = to(1);
  options.host = "no-such-host.invalid";
  options.read_timeout = milliseconds(300);
  TestNode node;
  attend(node, options);
  ASSERT_TRUE(run_until(loop, [&] { return node.last_is<LinkLost>(); }));
  EXPECT_TRUE(node.lost_for(ErrorCode::kTimedOut));
  EXPECT_NE(node.error().find("no-such-host.invalid:1"), std::string::npos) << node.error();
}

TEST_F(RemoteTest, TellsTheOthersAtOnceThatANodeDied) {
  HostSide side(loop, 3);
  Relay relay(loop, side.port());
  TestNode here;
  TestNode there;
  TestNode dying;
  here.link = side.host->attend(here.handler());
  here.link->join(make_node("a", 1));
  join(there, to(side.port()), make_node("b", 1));
  join(dying, to(relay.port()), make_node("c", 1));
  ASSERT_TRUE(all_hear<RoundPublished>({&here, &there, &dying}));
  relay.cut();
  ASSERT_TRUE(all_hear<RoundBroken>({&here, &there}, kSoon));
  EXPECT_EQ(there.last<RoundBroken>().cause.hostname, "host-c");
  // The one cut off hears of it as well, and a replacement fills the round.
  ASSERT_TRUE(all_hear<LinkLost>({&dying}, kSoon));
  EXPECT_TRUE(dying.lost_for(ErrorCode::kUnavailable)) << dying.error();
  TestNode replacement;
  here.link->join(make_node("a", 1));
  there.link->join(make_node("b", 1));
  join(replacement, to(side.port()), make_node("d", 1));
  ASSERT_TRUE(all_hear<RoundPublished>({&here, &there, &replacement}));
  EXPECT_EQ(here.last<RoundPublished>().round.number, 2);
}

TEST_F(RemoteTest, NoticesASilentNodeAndASilentHost) {
  HostSide side(loop, 2, {.token = "secret", .beat_every = milliseconds(50)});
  Relay relay(loop, side.port());
  RemoteOptions options = to(side.port());
  options.beat_every = milliseconds(50);
  TestNode there;
  TestNode frozen;
  join(there, options, make_node("a"));
  options.port = relay.port();
  join(frozen, options, make_node("b"));
  ASSERT_TRUE(all_hear<RoundPublished>({&there, &frozen}));
  const auto start = steady_clock::now();
  relay.freeze();
  ASSERT_TRUE(all_hear<JobEnded>({&there}));
  EXPECT_GE(steady_clock::now() - start, milliseconds(100));  // not before the beats are missing
  ASSERT_TRUE(all_hear<LinkLost>({&frozen}));
  EXPECT_NE(frozen.error().find("the host was silent for 0.15 s"), std::string::npos)
      << frozen.error();
}

TEST_F(RemoteTest, KeepsAnIdleLinkAliveByBeats) {
  HostSide side(loop, 1, {.token = "secret", .beat_every = milliseconds(30)});
  RemoteOptions options = to(side.port());
  options.beat_every = milliseconds(30);
  TestNode node;
  join(node, options, make_node("a"));
  ASSERT_TRUE(all_hear<RoundPublished>({&node}));
  EXPECT_FALSE(run_until(
      loop, [&] { return node.news.size() > 1; }, milliseconds(600)));
  node.link->report_success(1);
  EXPECT_TRUE(all_hear<JobEnded>({&node}));
}

TEST_F(RemoteTest, TellsANodeAtOnceThatTheHostDied) {
  HostSide side(loop, 2);
  TestNode node;
  join(node, to(side.port()), make_node("a"));
  // Its own link is up when another node of the same host is.
  ASSERT_FALSE(run_until(
      loop, [&] { return !node.news.empty(); }, milliseconds(300)));
  side.end();
  ASSERT_TRUE(all_hear<LinkLost>({&node}, kSoon));
  EXPECT_TRUE(node.lost_for(ErrorCode::kUnavailable));
  EXPECT_NE(node.error().find("the connection broke"), std::string::npos) << node.error();
}

TEST_F(RemoteTest, IsDestroyedQuicklyInEveryState) {
  HostSide side(loop, 2);
  std::vector<tcp::socket> mute;
  Listener silent(loop, [&](tcp::socket socket) { mute.push_back(std::move(socket)); });
  const auto destroy = [](TestNode& node) {
    const auto start = steady_clock::now();
    node.link.reset();
    EXPECT_LT(steady_clock::now() - start, milliseconds(100));
  };
  TestNode just_made;
  join(just_made, to(side.port()), make_node("a"));
  destroy(just_made);
  TestNode connecting;
  join(connecting, to(silent.port()), make_node("b"));
  ASSERT_TRUE(run_until(loop, [&] { return !mute.empty(); }));
  destroy(connecting);
  TestNode here;
  here.link = side.host->attend(here.handler());
  here.link->join(make_node("d"));
  TestNode connected;
  join(connected, to(side.port()), make_node("c"));
  ASSERT_TRUE(all_hear<RoundPublished>({&connected, &here}));
  destroy(connected);
  ASSERT_TRUE(all_hear<JobEnded>({&here}, kSoon));  // and the host knows
}

TEST_F(RemoteTest, LetsAHandlerDestroyItsLink) {
  HostSide side(loop, 1);
  std::unique_ptr<Attendance> link;
  bool called = false;
  link = attend_remotely(loop, to(side.port()), [&](const News&) {
    link.reset();
    called = true;
  });
  link->join(make_node("a"));
  EXPECT_TRUE(run_until(loop, [&] { return called; }));
  EXPECT_FALSE(link);
}

TEST_F(RemoteTest, SendsTheLastNewsEvenWhenTheHostEndsWithIt) {
  HostSide side(loop, 3);
  TestNode b;
  TestNode c;
  std::unique_ptr<Attendance> here;
  bool started = false;
  here = side.host->attend([&](const News& news) {
    started = true;
    if (!std::holds_alternative<JobEnded>(news)) return;
    here.reset();
    side.end();
  });
  here->join(make_node("a"));
  join(b, to(side.port()), make_node("b"));
  join(c, to(side.port()), make_node("c"));
  ASSERT_TRUE(all_hear<RoundPublished>({&b, &c}));
  b.link->report_success(1);
  c.link->report_success(1);
  here->report_success(1);
  ASSERT_TRUE(all_hear<JobEnded>({&b, &c})) << b.error() << c.error();
  EXPECT_TRUE(b.last<JobEnded>().succeeded && c.last<JobEnded>().succeeded);
}

TEST_F(RemoteTest, TellsTheOthersWhenTheHostsOwnNodeLeavesAndEnds) {
  HostSide side(loop, 2);
  TestNode here;
  TestNode there;
  here.link = side.host->attend(here.handler());
  here.link->join(make_node("a"));
  join(there, to(side.port()), make_node("b"));
  ASSERT_TRUE(all_hear<RoundPublished>({&here, &there}));
  here.link->leave(make_failure("SIGTERM"));
  here.link.reset();
  side.end();
  ASSERT_TRUE(all_hear<JobEnded>({&there})) << there.error();
  EXPECT_EQ(there.last<JobEnded>().cause, make_failure("SIGTERM"));
}

TEST_F(RemoteTest, LeavesAtOnceWhileItStillConnects) {
  RemoteOptions options = to(1);
  TestNode node;
  join(node, options, make_node("a"));
  const auto start = steady_clock::now();
  node.link->leave(make_failure("SIGINT"));
  node.link.reset();
  EXPECT_LT(steady_clock::now() - start, milliseconds(100));
}

TEST_F(RemoteTest, SurvivesClientsThatSendGarbage) {
  HostSide side(loop, 1);
  std::vector<tcp::socket> strangers;
  for (const std::string& bytes :
       {std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") + std::string(4096, '\xFF'),
        std::string("P"), std::string("POST / HTTP/1.1\r\n\r\n"), std::string()}) {
    strangers.emplace_back(loop);
    strangers.back().connect({boost::asio::ip::address_v4::loopback(), side.port()});
    asio::write(strangers.back(), asio::buffer(bytes));
  }
  TestNode node;
  join(node, to(side.port()), make_node("a"));
  EXPECT_TRUE(all_hear<RoundPublished>({&node})) << node.error();
}

// The host on a loop and thread of its own: leave() waits for its receipt.
TEST_F(RemoteTest, LeaveReachesTheHostBeforeItReturns) {
  std::promise<std::uint16_t> port;
  std::promise<Failure> told;
  std::thread other([&] {
    asio::io_context host_loop{1};
    HostSide side(host_loop, 2);
    TestNode here;
    here.link = side.host->attend(here.handler());
    here.link->join(make_node("a"));
    port.set_value(side.port());
    EXPECT_TRUE(run_until(host_loop, [&] { return here.last_is<JobEnded>(); }));
    told.set_value(here.last_is<JobEnded>() ? here.last<JobEnded>().cause : Failure{});
  });
  TestNode node;
  join(node, to(port.get_future().get()), make_node("b"));
  EXPECT_TRUE(all_hear<RoundPublished>({&node}));
  const auto start = steady_clock::now();
  node.link->leave(make_failure("SIGTERM"));
  EXPECT_LT(steady_clock::now() - start, kLeaveLimit);
  node.link.reset();
  EXPECT_EQ(told.get_future().get(), make_failure("SIGTERM"));
  other.join();
}

}  // namespace
}  // namespace ddprun::rendezvous
