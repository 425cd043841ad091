// A node that does not reach its host, or goes before it does.
#include <gtest/gtest.h>

#include <boost/asio/steady_timer.hpp>
#include <vector>

#include "tests/rendezvous/grpc/remote_fixture.h"

namespace ddprun::rendezvous {
namespace {

// Half of what waiting for the host would take; a busy machine needs a part of it.
constexpr milliseconds kAtOnce = kTestLimit / 2;

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
  // Long enough for one refusal, also on a machine that does much else.
  options.read_timeout = milliseconds(3000);
  TestNode node;
  const auto start = steady_clock::now();
  join(node, options, make_node("a"));
  ASSERT_TRUE(run_until(loop, [&] { return node.last_is<SessionLost>(); }));
  EXPECT_GE(steady_clock::now() - start, milliseconds(3000));
  EXPECT_TRUE(node.lost_for(ErrorCode::kTimedOut));
  const std::string expected = "rendezvous at 127.0.0.1:" + std::to_string(options.port) +
                               ": nobody answered within read_timeout=3 s (";
  EXPECT_EQ(node.error().substr(0, expected.size()), expected);
  EXPECT_NE(node.error().find("refused"), std::string::npos) << node.error();
}

// The leader of an election: another one may be there soon.
TEST_F(RemoteTest, TriesOnceWhereItIsTold) {
  tcp::acceptor closed(loop);
  closed.open(tcp::v4());
  closed.bind(any_loopback_port());
  RemoteOptions options = to(closed.local_endpoint().port());
  options.tries_again = false;
  TestNode node;
  join(node, options, make_node("a"));
  ASSERT_TRUE(run_until(
      loop, [&] { return node.last_is<SessionLost>(); }, kAtOnce));
  EXPECT_TRUE(node.lost_for(ErrorCode::kUnavailable)) << node.error();
  EXPECT_FALSE(node.last<SessionLost>().was_reached);
}

TEST_F(RemoteTest, SaysWhenItWasLetIn) {
  HostSide host(loop, 2);
  bool is_in = false;
  RemoteOptions options = to(host.port());
  options.on_admitted = [&](const std::string&, std::uint16_t) { is_in = true; };
  TestNode node;
  open_session(node, options);
  EXPECT_TRUE(run_until(loop, [&] { return is_in; }));
}

TEST_F(RemoteTest, GivesUpOnAPeerThatNeverAnswers) {
  std::vector<tcp::socket> mute;
  Listener listener(loop, [&](tcp::socket socket) { mute.push_back(std::move(socket)); });
  RemoteOptions options = to(listener.port());
  options.read_timeout = milliseconds(3000);
  TestNode node;
  join(node, options, make_node("a"));
  ASSERT_TRUE(run_until(loop, [&] { return node.last_is<SessionLost>(); }));
  EXPECT_TRUE(node.lost_for(ErrorCode::kTimedOut)) << node.error();
  EXPECT_FALSE(mute.empty());
}

TEST_F(RemoteTest, TriesTheAddressesOfTheHostInTurn) {
  HostSide side(loop, 1);
  RemoteOptions options = to(side.port());
  options.host = "a-name";
  options.addresses = {"127.0.0.2", "127.0.0.1"};
  TestNode node;
  join(node, options, make_node("a"));
  ASSERT_TRUE(run_until(loop, [&] { return node.last_is<RoundPublished>(); })) << node.error();
}

TEST_F(RemoteTest, NamesTheHostThatDoesNotAnswerAsTheUserDid) {
  RemoteOptions options = to(1);
  options.host = "a-name";
  options.addresses = {"127.0.0.1"};
  options.read_timeout = milliseconds(300);
  TestNode node;
  open_session(node, options);
  ASSERT_TRUE(run_until(loop, [&] { return node.last_is<SessionLost>(); }));
  EXPECT_TRUE(node.lost_for(ErrorCode::kTimedOut));
  EXPECT_NE(node.error().find("a-name:1"), std::string::npos) << node.error();
}

TEST_F(RemoteTest, IsDestroyedQuicklyInEveryState) {
  HostSide side(loop, 2);
  std::vector<tcp::socket> mute;
  Listener silent(loop, [&](tcp::socket socket) { mute.push_back(std::move(socket)); });
  const auto patient = [](std::uint16_t port) {
    RemoteOptions options = to(port);
    options.leave_limit = std::chrono::seconds(60);
    return options;
  };
  const auto destroy = [](TestNode& node) {
    const auto start = steady_clock::now();
    node.session.reset();
    EXPECT_LT(steady_clock::now() - start, kAtOnce);
  };
  TestNode just_made;
  join(just_made, patient(side.port()), make_node("a"));
  destroy(just_made);
  TestNode connecting;
  join(connecting, patient(silent.port()), make_node("b"));
  ASSERT_TRUE(run_until(loop, [&] { return !mute.empty(); }));
  destroy(connecting);
  TestNode here;
  here.session = side.host->open_session(here.handler());
  here.session->join(make_node("d"));
  TestNode connected;
  join(connected, patient(side.port()), make_node("c"));
  ASSERT_TRUE(all_hear<RoundPublished>({&connected, &here}));
  destroy(connected);
  ASSERT_TRUE(all_hear<JobEnded>({&here}));  // and the host knows
}

TEST_F(RemoteTest, LetsAHandlerDestroyItsSession) {
  HostSide side(loop, 1);
  std::unique_ptr<Session> session;
  bool called = false;
  session = open_remote_session(loop, to(side.port()), [&](const HostMessage&) {
    session.reset();
    called = true;
  });
  session->join(make_node("a"));
  EXPECT_TRUE(run_until(loop, [&] { return called; }));
  EXPECT_FALSE(session);
}

TEST_F(RemoteTest, LeavesAtOnceWhileItStillConnects) {
  RemoteOptions options = to(1);
  options.leave_limit = std::chrono::seconds(60);
  TestNode node;
  join(node, options, make_node("a"));
  const auto start = steady_clock::now();
  node.session->leave(make_failure("SIGINT"));
  node.session.reset();
  EXPECT_LT(steady_clock::now() - start, kAtOnce);
}

}  // namespace
}  // namespace ddprun::rendezvous
