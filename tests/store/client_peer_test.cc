// Our client against peers that misbehave: silent, late, wrong, gone.
#include <gtest/gtest.h>

#include <thread>

#include "tests/store/served_store.h"

namespace ddprun::store {
namespace {

using asio::ip::tcp;
using std::chrono::milliseconds;

// A listener whose one test decides what is said.
class FakeServer {
 public:
  FakeServer() : acceptor_(bind_listener(loop_, "127.0.0.1", 0).value()) {}

  std::uint16_t port() const { return acceptor_.local_endpoint().port(); }
  RawPeer accept() { return RawPeer(acceptor_); }

  // Accepts and answers the handshake.
  RawPeer greet() {
    RawPeer peer = accept();
    const std::string hello = peer.read(10);
    EXPECT_EQ(hello.substr(0, 6), unhex("00 cef7853c 0d"));
    peer.send(hello.substr(6));
    return peer;
  }

  asio::ip::tcp::acceptor& acceptor() { return acceptor_; }

 private:
  asio::io_context loop_;
  asio::ip::tcp::acceptor acceptor_;
};

// A client that a fake server greeted, and the server's end.
struct Pair {
  explicit Pair(FakeServer& server) {
    std::thread greeter([&] { peer.emplace(server.greet()); });
    client.emplace(Client::connect("127.0.0.1", server.port(), kPatience).value());
    greeter.join();
  }
  std::optional<RawPeer> peer;
  std::optional<Client> client;
};

TEST(ClientPeer, SendsValidateAndPingInOnePiece) {
  FakeServer server;
  std::thread connecting(
      [&] { EXPECT_TRUE(Client::connect("127.0.0.1", server.port(), kPatience).has_value()); });
  RawPeer peer = server.accept();
  std::string pid;
  put_nonce(static_cast<std::uint32_t>(::getpid()), pid);
  std::string first(64, '\0');
  first.resize(peer.socket().read_some(asio::buffer(first)));
  EXPECT_EQ(first, unhex("00 cef7853c 0d") + pid);
  peer.send(pid);
  connecting.join();
}

TEST(ClientPeer, EveryCallOnASilentServerEnds) {
  using Call = std::function<Error(Client&)>;
  const std::vector<Call> calls = {
      [](Client& c) { return c.ping().error(); },
      [](Client& c) { return c.add("k", 1).error(); },
      [](Client& c) { return c.compare_set("k", "", "v").error(); },
      [](Client& c) { return c.num_keys().error(); },
      [](Client& c) { return c.remove("k").error(); },
      [](Client& c) { return c.check(std::vector<std::string>{"k"}).error(); },
      [](Client& c) { return c.list_keys().error(); },
      [](Client& c) { return c.queue_pop("k").error(); },
      [](Client& c) { return c.queue_length("k").error(); },
  };
  FakeServer server;
  for (const Call& call : calls) {
    Pair pair(server);
    pair.client->set_limit(milliseconds(20));
    const Error error = call(*pair.client);
    EXPECT_EQ(error.code(), ErrorCode::kTimedOut) << error.message();
    EXPECT_EQ(pair.client->ping().error().code(),
              ErrorCode::kUnavailable);  // its stream may be cut in a frame
  }
}

TEST(ClientPeer, ASetOnAServerThatDoesNotReadEnds) {
  FakeServer server;
  Pair pair(server);
  pair.client->set_limit(milliseconds(50));
  const auto stored = pair.client->set("k", std::string(64 * kMiB, 'v'));
  ASSERT_TRUE(stored.has_error());
  EXPECT_EQ(stored.error().code(), ErrorCode::kTimedOut);
}

TEST(ClientPeer, AnAnswerThatCrossesTheCancelStillCounts) {
  FakeServer server;
  Pair pair(server);
  std::thread late([&] {
    const std::string wait = request(Op::kWait, {"k"});
    EXPECT_EQ(pair.peer->read(wait.size()), wait);
    EXPECT_EQ(pair.peer->read(1), unhex("0c"));
    pair.peer->send(unhex("00 01"));
  });
  EXPECT_TRUE(pair.client->wait("k", milliseconds(10)).has_value());
  late.join();
}

TEST(ClientPeer, AServerThatGoesAwayIsReported) {
  FakeServer server;
  Pair pair(server);
  std::thread leaving([&] {
    EXPECT_EQ(pair.peer->read(1), unhex("06"));
    pair.peer->socket().close();
  });
  const auto waited = pair.client->wait("k", kPatience);
  leaving.join();
  ASSERT_TRUE(waited.has_error());
  EXPECT_EQ(waited.error().code(), ErrorCode::kUnavailable);
}

TEST(ClientPeer, AnAbsurdLengthInAnAnswerTakesNoMemory) {
  FakeServer server;
  Pair pair(server);
  std::thread lying([&] { pair.peer->send(unhex("00 ffffffffffffff3f")); });
  const auto value = pair.client->get("k");
  lying.join();
  ASSERT_TRUE(value.has_error());
  EXPECT_EQ(value.error().code(), ErrorCode::kLimit);
}

TEST(ClientPeer, AnAnswerByteByByteIsWhole) {
  FakeServer server;
  Pair pair(server);
  std::thread dribbling([&] {
    const std::string answer = unhex("00 0500000000000000") + "value";
    for (const char byte : answer) pair.peer->send({&byte, 1});
  });
  EXPECT_EQ(pair.client->get("k").value(), "value");
  dribbling.join();
}

TEST(ClientPeer, ConnectsAgainWhereTheFirstConnectionDies) {
  FakeServer server;
  std::thread serving([&] {
    server.accept();  // and closed before it is greeted
    server.greet();
  });
  EXPECT_TRUE(Client::connect("127.0.0.1", server.port(), kPatience).has_value());
  serving.join();
}

TEST(ClientPeer, ConnectsAgainWhereTheEchoIsWrong) {
  FakeServer server;
  std::thread serving([&] {
    RawPeer wrong = server.accept();
    EXPECT_EQ(wrong.read(10).size(), 10U);
    wrong.send("????");
    server.greet();
  });
  EXPECT_TRUE(Client::connect("127.0.0.1", server.port(), kPatience).has_value());
  serving.join();
}

TEST(ClientPeer, GivesUpOnAClosedPortAndSaysWhat) {
  asio::io_context loop;
  tcp::acceptor closed(loop);  // bound, so the port is ours; not listening, so connects are refused
  closed.open(tcp::v4());
  closed.bind({asio::ip::address_v4::loopback(), 0});
  const std::uint16_t port = closed.local_endpoint().port();
  const auto before = std::chrono::steady_clock::now();
  const auto connected = Client::connect("127.0.0.1", port, milliseconds(300));
  ASSERT_TRUE(connected.has_error());
  EXPECT_LE(std::chrono::steady_clock::now() - before, kPatience);
  EXPECT_EQ(connected.error().code(), ErrorCode::kTimedOut);
  EXPECT_EQ(connected.error().message(), "connect to store 127.0.0.1:" + std::to_string(port) +
                                             ": not possible in 300 ms; last: Connection refused");
}

TEST(ClientPeer, GivesUpOnAServerThatNeverGreets) {
  FakeServer silent;
  const auto connected = Client::connect("127.0.0.1", silent.port(), milliseconds(100));
  ASSERT_TRUE(connected.has_error());
  EXPECT_EQ(connected.error().code(), ErrorCode::kTimedOut);
}

TEST(ClientPeer, AMovedClientWorks) {
  FakeServer server;
  Pair pair(server);
  Client moved = std::move(*pair.client);
  std::string pid;
  put_nonce(static_cast<std::uint32_t>(::getpid()), pid);
  pair.peer->send(pid);
  EXPECT_TRUE(moved.ping().has_value());
}

}  // namespace
}  // namespace ddprun::store
