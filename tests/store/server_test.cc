// The server as a process sees it: many clients, slow clients, a fresh start between attempts, and
// its end.
#include "store/server.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "tests/store/served_store.h"

namespace ddprun::store {
namespace {

using asio::ip::tcp;

TEST(Server, WakesAThousandWaiters) {
  ServedStore store;
  std::vector<RawPeer> peers;
  for (int i = 0; i < 1000; ++i) {
    peers.push_back(RawPeer::greeted(store.port()));
    peers.back().send(request(Op::kWait, {"go"}));
  }
  ASSERT_TRUE(store.eventually([](const Server& server) { return server.waiters() == 1000; }));
  EXPECT_EQ(store.on_loop([&] { return store.server().connections(); }), 1000U);
  Client client = store.client();
  ASSERT_TRUE(client.set("go", "").has_value());
  for (RawPeer& peer : peers) ASSERT_EQ(peer.read(1), unhex("00"));
  EXPECT_EQ(store.on_loop([&] { return store.server().waiters(); }), 0U);
}

TEST(Server, AClientThatDoesNotReadDelaysNobodyAndLosesNothing) {
  ServedStore store;
  Client other = store.client();
  ASSERT_TRUE(other.set("big", std::string(4 * kMiB, 'b')).has_value());
  ASSERT_TRUE(other.ping().has_value());
  RawPeer slow = RawPeer::greeted(store.port());
  constexpr int gets = 32;  // 128 MiB of answers, far more than the kernel's buffers
  for (int i = 0; i < gets; ++i) slow.send(request(Op::kGet, {"big"}));
  slow.send(request(Op::kAdd, {"n"}, 5));
  for (int i = 1; i <= 100; ++i) ASSERT_EQ(other.add("others", 1).value(), i);
  // Not all of it was made at once: the add behind the gets has to wait for the reader.
  EXPECT_FALSE(other.check(std::vector<std::string>{"n"}).value());
  for (int i = 0; i < gets; ++i) ASSERT_EQ(slow.read(8 + 4 * kMiB).size(), 8 + 4 * kMiB);
  EXPECT_EQ(slow.read(8), unhex("0500000000000000"));
}

TEST(Server, AnAnswerUnderWayKeepsTheValueThatWasAskedFor) {
  ServedStore store;
  Client other = store.client();
  const std::string old(8 * kMiB, 'a');
  ASSERT_TRUE(other.set("big", old).has_value());
  ASSERT_TRUE(other.ping().has_value());
  RawPeer slow = RawPeer::greeted(store.port());
  slow.send(request(Op::kGet, {"big"}) + request(Op::kAdd, {"n"}, 5));
  ASSERT_EQ(get_u64(slow.read(8)), old.size());
  // The rest does not fit the kernel's buffers.
  ASSERT_TRUE(other.set("big", std::string(8 * kMiB, 'b')).has_value());
  ASSERT_TRUE(other.ping().has_value());
  EXPECT_TRUE(slow.read(old.size()) == old);
  EXPECT_EQ(slow.read(8), unhex("0500000000000000"));
}

TEST(Server, AClientThatFloodsHasOneTurnAmongTheOthers) {
  ServedStore store;
  Client other = store.client();
  ASSERT_TRUE(other.set("n", "0").has_value());
  ASSERT_TRUE(other.ping().has_value());
  RawPeer flooder = RawPeer::greeted(store.port());
  RawPeer calm = RawPeer::greeted(store.port());
  store.let_the_server_read();
  constexpr int add_count = 2000;
  std::string adds;
  for (int i = 0; i < add_count; ++i) adds += request(Op::kAdd, {"n"}, 1);
  // While the loop is busy with this, both arrive.
  store.on_loop([&] {
    flooder.send(adds);
    calm.send(request(Op::kGet, {"n"}));
  });
  const std::uint64_t digits = get_u64(calm.read(8));
  EXPECT_LE(std::stoi(calm.read(digits)), 50) << "requests of the flooder that came first";
  for (int i = 1; i <= add_count; ++i)
    ASSERT_EQ(get_u64(flooder.read(8)), static_cast<std::uint64_t>(i));
}

TEST(Server, AWakeReachesAClientWhoseBuffersAreFull) {
  ServedStore store;
  Client other = store.client();
  ASSERT_TRUE(other.set("big", std::string(8 * kMiB, 'b')).has_value());
  ASSERT_TRUE(other.ping().has_value());
  RawPeer slow = RawPeer::greeted(store.port());
  slow.send(request(Op::kWait, {"go"}) + request(Op::kGet, {"big"}) + request(Op::kGet, {"big"}));
  ASSERT_TRUE(store.eventually([](const Server& server) { return server.waiters() == 1; }));
  ASSERT_TRUE(other.set("go", "").has_value());
  ASSERT_TRUE(other.ping().has_value());
  const std::string answer = slow.read(2 * (8 + 8 * kMiB) + 1);
  EXPECT_EQ(answer.size(), 2 * (8 + 8 * kMiB) + 1);
}

TEST(Server, ManySmallAnswersToALateReaderAllArriveInOrder) {
  ServedStore store;
  RawPeer peer = RawPeer::greeted(store.port());
  constexpr int add_count = 200'000;
  std::string adds;
  for (int i = 0; i < add_count; ++i) adds += request(Op::kAdd, {"n"}, 1);
  std::thread sender([&] { peer.send(adds); });
  for (int i = 1; i <= add_count; ++i)
    ASSERT_EQ(get_u64(peer.read(8)), static_cast<std::uint64_t>(i));
  sender.join();
}

TEST(Server, ADisconnectForgetsItsWaits) {
  ServedStore store;
  {
    RawPeer peer = RawPeer::greeted(store.port());
    peer.send(request(Op::kWait, {"never"}));
    ASSERT_TRUE(store.eventually([](const Server& server) { return server.waiters() == 1; }));
  }
  EXPECT_TRUE(store.eventually(
      [](const Server& server) { return server.waiters() == 0 && server.connections() == 0; }));
}

TEST(Server, AResetEmptiesTheStoreAndClosesEveryConnection) {
  ServedStore store;
  Client old = store.client();
  ASSERT_EQ(old.add("init/", 1).value(), 1);
  RawPeer waiter = RawPeer::greeted(store.port());
  waiter.send(request(Op::kWait, {"never"}));
  ASSERT_TRUE(store.eventually([](const Server& server) { return server.waiters() == 1; }));
  store.on_loop([&] { store.server().reset(); });
  EXPECT_TRUE(waiter.is_closed());
  EXPECT_FALSE(old.ping().has_value());
  Client fresh = store.client();
  EXPECT_EQ(fresh.num_keys().value(), 0);
  EXPECT_EQ(store.on_loop([&] { return store.server().waiters(); }), 0U);
  EXPECT_EQ(store.on_loop([&] { return store.server().connections(); }), 1U);
}

TEST(Server, BytesSentBeforeAResetNeverReachTheNewStore) {
  ServedStore store;
  RawPeer old = RawPeer::greeted(store.port());
  ASSERT_TRUE(old.answers_ping());
  store.on_loop([&] {
    // The loop is busy here: the kernel holds these bytes when the store is reset.
    old.send(request(Op::kSet, {"stale", "address"}));
    store.server().reset();
  });
  Client fresh = store.client();
  EXPECT_EQ(fresh.num_keys().value(), 0);
  EXPECT_TRUE(old.is_closed());
}

TEST(Server, ConnectionsThatWaitToBeAcceptedDoNotOutliveAReset) {
  ServedStore store;
  store.let_the_server_read();
  auto late = store.on_loop([&] {
    // Connected and written while the loop is busy: not accepted yet.
    RawPeer peer = RawPeer::greeted(store.port());
    peer.send(request(Op::kSet, {"stale", "address"}));
    store.server().reset();
    return peer;
  });
  EXPECT_TRUE(late.is_closed());
  EXPECT_EQ(store.client().num_keys().value(), 0);
}

TEST(Server, ANewlyAcceptedConnectionDoesNotOutliveAReset) {
  ServedStore store;
  tcp::acceptor elsewhere = bind_listener(store.loop(), "127.0.0.1", 0).value();
  RawPeer peer(elsewhere.local_endpoint().port());
  peer.send(unhex("00 cef7853c") + request(Op::kSet, {"stale", "address"}));
  store.on_loop([&] {
    store.server().adopt(elsewhere.accept());  // its coroutine has not started yet
    store.server().reset();
  });
  EXPECT_TRUE(peer.is_closed());
  EXPECT_EQ(store.client().num_keys().value(), 0);
}

TEST(Server, AdoptsAConnectionAcceptedElsewhere) {
  ServedStore store;
  tcp::acceptor elsewhere = bind_listener(store.loop(), "127.0.0.1", 0).value();
  RawPeer peer(elsewhere.local_endpoint().port());
  peer.send(unhex("00 cef7853c") + request(Op::kSet, {"k", "v"}));
  store.on_loop([&] { store.server().adopt(elsewhere.accept()); });
  EXPECT_TRUE(peer.answers_ping());
  EXPECT_EQ(store.client().get("k").value(), "v");
}

TEST(Server, ServesSeveralAddressesWithOneTable) {
  ServedStore store;
  auto second = bind_listener(store.loop(), "::1", 0);
  if (second.has_error()) GTEST_SKIP() << "no IPv6 here: " << second.error().message();
  const std::uint16_t port = second->local_endpoint().port();
  store.on_loop([&] { store.server().serve(std::move(*second)); });
  Client over_v6 = Client::connect("::1", port, kPatience).value();
  ASSERT_TRUE(over_v6.set("k", "v").has_value());
  EXPECT_EQ(store.client().get("k").value(), "v");
}

TEST(Server, TakesAListenerThatIsBoundOnly) {
  ServedStore store;
  tcp::acceptor bound(store.loop(), tcp::v4());
  bound.bind({asio::ip::make_address("127.0.0.1"), 0});
  const std::uint16_t port = bound.local_endpoint().port();
  store.on_loop([&] { store.server().serve(std::move(bound)); });
  EXPECT_TRUE(Client::connect("127.0.0.1", port, kPatience).value().ping().has_value());
}

TEST(Server, CloseEndsAllAndMayBeRepeated) {
  ServedStore store;
  RawPeer peer = RawPeer::greeted(store.port());
  ASSERT_TRUE(peer.answers_ping());
  store.on_loop([&] {
    store.server().close();
    store.server().close();
  });
  EXPECT_TRUE(peer.is_closed());
  EXPECT_EQ(store.on_loop([&] { return store.server().connections(); }), 0U);
  tcp::socket refused(store.loop());
  boost::system::error_code failure;
  refused.connect({asio::ip::make_address("127.0.0.1"), store.port()}, failure);
  EXPECT_EQ(failure, asio::error::connection_refused);
}

TEST(Server, MayBeDestroyedUnderItsConnections) {
  ServedStore store;
  RawPeer idle = RawPeer::greeted(store.port());
  RawPeer waiting = RawPeer::greeted(store.port());
  waiting.send(request(Op::kWait, {"never"}));
  RawPeer half = RawPeer::greeted(store.port());
  half.send(request(Op::kSet, {"k", "v"}).substr(0, 10));
  RawPeer full = RawPeer::greeted(store.port());
  full.send(request(Op::kSet, {"big", std::string(8 * kMiB, 'b')}));
  full.send(request(Op::kGet, {"big"}) + request(Op::kGet, {"big"}) + request(Op::kGet, {"big"}));
  ASSERT_TRUE(store.eventually(
      [](const Server& server) { return server.waiters() == 1 && server.keys() == 1; }));
  store.on_loop([&] { store.destroy_server(); });
  EXPECT_TRUE(idle.is_closed());
  EXPECT_TRUE(waiting.is_closed());
  EXPECT_TRUE(half.is_closed());
}

TEST(Server, MayDieWithALoopThatNeverRunsAgain) {
  auto loop = std::make_unique<asio::io_context>(1);
  auto server = std::make_unique<Server>(*loop);
  tcp::acceptor acceptor = bind_listener(*loop, "127.0.0.1", 0).value();
  const std::uint16_t port = acceptor.local_endpoint().port();
  server->serve(std::move(acceptor));
  RawPeer peer = RawPeer::greeted(port);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (server->connections() == 0 && std::chrono::steady_clock::now() < deadline) loop->run_one();
  EXPECT_EQ(server->connections(), 1U);
  server.reset();
  loop.reset();
  EXPECT_TRUE(peer.is_closed());
}

TEST(Server, ItsDescriptorsAreCloseOnExec) {
  ServedStore store;
  Client client = store.client();
  ASSERT_TRUE(client.ping().has_value());
  int sockets = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    boost::system::error_code gone;
    std::error_code unreadable;
    const auto target = std::filesystem::read_symlink(entry.path(), unreadable);
    if (unreadable || !target.string().starts_with("socket:")) continue;
    ++sockets;
    EXPECT_TRUE(::fcntl(std::stoi(entry.path().filename()), F_GETFD) & FD_CLOEXEC) << entry.path();
  }
  EXPECT_GE(sockets, 3);  // listener, server side, client side
}

TEST(Listener, ATakenPortIsNamedWithItsAddress) {
  asio::io_context loop;
  const auto first = bind_listener(loop, "127.0.0.1", 0);
  const std::uint16_t port = first->local_endpoint().port();
  const auto second = bind_listener(loop, "127.0.0.1", port);
  ASSERT_TRUE(second.has_error());
  EXPECT_EQ(second.error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(second.error().message(), "port " + std::to_string(port) +
                                          " on 127.0.0.1: address already in use; choose another "
                                          "--master-port or stop the program that listens there");
}

TEST(Listener, ForeignAddressesAndNamesAreRefused) {
  asio::io_context loop;
  const auto foreign = bind_listener(loop, "192.0.2.1", 29500);
  ASSERT_TRUE(foreign.has_error());
  EXPECT_EQ(foreign.error().message(),
            "port 29500 on 192.0.2.1: no interface of this host has that address");
  for (const char* name : {"localhost", "", "127.0.0.1:80"}) {
    const auto named = bind_listener(loop, name, 0);
    ASSERT_TRUE(named.has_error());
    EXPECT_EQ(named.error().code(), ErrorCode::kInvalidArgument);
  }
}

TEST(Listener, ListensAtOnceSoThatNoClientIsTurnedAway) {
  ServedStore store;
  tcp::acceptor acceptor = bind_listener(store.loop(), "127.0.0.1", 0).value();
  RawPeer early = RawPeer::greeted(acceptor.local_endpoint().port());
  store.on_loop([&] { store.server().serve(std::move(acceptor)); });
  EXPECT_TRUE(early.answers_ping());
}

}  // namespace
}  // namespace ddprun::store
