// The server at its limits: too many connections, too few descriptors, silence, hoarding.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <ctime>
#include <deque>
#include <limits>
#include <optional>
#include <vector>

#include "base/net/descriptors.h"
#include "tests/store/descriptor_limit.h"
#include "tests/store/served_store.h"

namespace ddprun::store {
namespace {

using asio::ip::tcp;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// The text that is written to stderr while it lives.
class Captured {
 public:
  Captured() { testing::internal::CaptureStderr(); }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  ~Captured() {
    if (!taken_) testing::internal::GetCapturedStderr();
  }
  // How often `text` was written. Ends the capture.
  int count(const std::string& text) {
    taken_ = true;
    const std::string all = testing::internal::GetCapturedStderr();
    int found = 0;
    for (auto at = all.find(text); at != std::string::npos; at = all.find(text, at + 1)) ++found;
    return found;
  }

 private:
  bool taken_ = false;
};

milliseconds cpu_time_of_this_thread() {
  timespec used{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return std::chrono::duration_cast<milliseconds>(std::chrono::seconds(used.tv_sec) +
                                                  std::chrono::nanoseconds(used.tv_nsec));
}

TEST(ServerLimits, RefusesConnectionsBeyondItsLimit) {
  ServedStore store(StoreLimits{.connections = 2});
  RawPeer first = RawPeer::greeted(store.port());
  RawPeer second = RawPeer::greeted(store.port());
  ASSERT_TRUE(first.answers_ping());
  ASSERT_TRUE(second.answers_ping());
  EXPECT_TRUE(RawPeer::greeted(store.port()).is_closed());
  first.socket().close();
  ASSERT_TRUE(store.eventually([](const Server& server) { return server.connections() == 1; }));
  EXPECT_TRUE(RawPeer::greeted(store.port()).answers_ping());
}

TEST(ServerLimits, DropsWhoAlonePassesTheBufferLimit) {
  ServedStore store(StoreLimits{.buffered_bytes = 100'000});
  RawPeer modest = RawPeer::greeted(store.port());
  modest.send(request(Op::kSet, {"k", std::string(50'000, 'v')}).substr(0, 40'000));
  store.let_the_server_read();
  RawPeer greedy = RawPeer::greeted(store.port());
  greedy.send(request(Op::kSet, {"k", std::string(500'000, 'v')}).substr(0, 400'000));
  EXPECT_TRUE(greedy.is_closed());
  modest.send(request(Op::kSet, {"k", std::string(50'000, 'v')}).substr(40'000));
  EXPECT_TRUE(modest.answers_ping());
  // Dropped and finished requests no longer count.
  RawPeer next = RawPeer::greeted(store.port());
  next.send(request(Op::kSet, {"k", std::string(90'000, 'v')}));
  EXPECT_TRUE(next.answers_ping());
}

TEST(ServerLimits, AtTheBufferLimitTheOneThatHoldsMostIsDropped) {
  ServedStore store(StoreLimits{.buffered_bytes = 100'000});
  const std::string large = request(Op::kSet, {"large", std::string(100'000, 'v')});
  const std::string small = request(Op::kSet, {"small", std::string(50'000, 'v')});
  RawPeer hoarder = RawPeer::greeted(store.port());
  hoarder.send(large.substr(0, 80'000));
  store.let_the_server_read();
  RawPeer modest = RawPeer::greeted(store.port());
  modest.send(small.substr(0, 40'000));
  EXPECT_TRUE(hoarder.is_closed());
  modest.send(small.substr(40'000));
  EXPECT_TRUE(modest.answers_ping());
  EXPECT_EQ(store.client().num_keys().value(), 1);
}

TEST(ServerLimits, DropsWhoDoesNotValidateInTime) {
  ServedStore store(StoreLimits{.handshake = milliseconds(1000)});
  RawPeer idle = RawPeer::greeted(store.port());
  ASSERT_TRUE(idle.answers_ping());
  const auto before = steady_clock::now();
  RawPeer silent(store.port());
  RawPeer half(store.port());
  half.send(unhex("00 ce"));
  EXPECT_TRUE(silent.is_closed());
  EXPECT_GE(steady_clock::now() - before, milliseconds(1000));
  EXPECT_TRUE(half.is_closed());
  EXPECT_TRUE(idle.answers_ping());  // connected before them, and greeted
  RawPeer later(store.port());       // the watch goes on
  EXPECT_TRUE(later.is_closed());
}

// One look at the sockets tells of 128 at most, and the timer is due in the first.
TEST(ServerLimits, AStallOfItsOwnCostsNoClientItsConnection) {
  constexpr std::size_t count = 300;
  constexpr milliseconds limit{3000};  // so long may it take to accept all of them
  asio::io_context loop{1};
  Server server(loop, StoreLimits{.handshake = limit});
  tcp::acceptor acceptor = bind_listener(loop, "127.0.0.1", 0).value();
  const std::uint16_t port = acceptor.local_endpoint().port();
  server.serve(std::move(acceptor));
  std::vector<RawPeer> peers;
  while (peers.size() < count) peers.emplace_back(port);
  const auto deadline = steady_clock::now() + kPatience;
  while (server.connections() < count && steady_clock::now() < deadline) loop.run_one_for(limit);
  ASSERT_EQ(server.connections(), count);
  for (RawPeer& peer : peers) peer.send(unhex("00 cef7853c"));
  std::this_thread::sleep_for(limit);  // the stall
  loop.run_for(limit / 2);
  EXPECT_EQ(server.connections(), count);
}

TEST(Descriptors, AQuarterAtMostIsKeptForTheLauncher) {
  EXPECT_EQ(first_reserved_descriptor(4096), 4096 - 256);
  EXPECT_EQ(first_reserved_descriptor(1024), 768);
  EXPECT_EQ(first_reserved_descriptor(64), 48);
  EXPECT_EQ(first_reserved_descriptor(RLIM_INFINITY), std::numeric_limits<int>::max() - 256);
}

TEST(Descriptors, TheLimitIsRaisedAndTheOldOneTold) {
  const DescriptorLimit lowered(512);
  const rlimit before = raise_descriptor_limit();
  EXPECT_EQ(before.rlim_cur, 512U);
  rlimit now{};
  ::getrlimit(RLIMIT_NOFILE, &now);
  EXPECT_EQ(now.rlim_cur, now.rlim_max);
  EXPECT_EQ(now.rlim_max, before.rlim_max);
}

TEST(ServerLimits, ConnectionsLeaveDescriptorsForTheLauncher) {
  Captured output;
  const int soft = lowest_free_descriptor() + 200;
  const DescriptorLimit lowered(static_cast<rlim_t>(soft));
  const int reserved = soft - first_reserved_descriptor();
  ServedStore store;
  std::deque<RawPeer> peers;
  const auto connects = [&] {
    return peers.emplace_back(RawPeer::greeted(store.port())).answers_ping();
  };
  while (connects()) ASSERT_LT(peers.size(), 200U);
  EXPECT_FALSE(connects());
  // The clients of this test live in the same process: two refused ones, of four descriptors each.
  EXPECT_GE(free_descriptors(), reserved - 8);
  const std::size_t open = store.on_loop([&] { return store.server().connections(); });
  EXPECT_EQ(open, peers.size() - 2);
  for (int i = 0; i < 4; ++i) peers.pop_front();
  ASSERT_TRUE(
      store.eventually([&](const Server& server) { return server.connections() == open - 4; }));
  EXPECT_TRUE(connects());
  EXPECT_EQ(output.count("connections are refused"), 1);
}

TEST(ServerLimits, OutOfDescriptorsItNeitherSpinsNorStopsAndGoesOnWhenOneIsFree) {
  Captured output;
  ServedStore store;
  std::optional<RawPeer> leaving = RawPeer::greeted(store.port());
  RawPeer staying = RawPeer::greeted(store.port());
  ASSERT_TRUE(leaving->answers_ping() && staying.answers_ping());
  std::optional<DescriptorLimit> none_left;
  RawPeer waiting = store.on_loop([&] {
    RawPeer peer = RawPeer::greeted(store.port());  // connected, and not accepted yet
    none_left.emplace(static_cast<rlim_t>(lowest_free_descriptor()));
    return peer;
  });
  const auto cpu_before = store.on_loop(cpu_time_of_this_thread);
  std::this_thread::sleep_for(milliseconds(300));  // the time in which it could spin
  EXPECT_LT(store.on_loop(cpu_time_of_this_thread) - cpu_before, milliseconds(100));
  EXPECT_TRUE(staying.answers_ping());
  EXPECT_EQ(store.on_loop([&] { return store.server().connections(); }), 2U);
  const auto before = steady_clock::now();
  leaving.reset();
  EXPECT_TRUE(waiting.answers_ping());
  EXPECT_LT(steady_clock::now() - before, std::chrono::seconds(4));  // not by its own second look
  none_left.reset();
  EXPECT_EQ(output.count("cannot accept connections"), 1);
}

TEST(Listener, DroppingItsQueueEndsThoughOthersKeepConnecting) {
  asio::io_context loop;
  tcp::acceptor acceptor = bind_listener(loop, "127.0.0.1", 0).value();
  const tcp::endpoint address = acceptor.local_endpoint();
  Listener listener(std::move(acceptor));
  int taken = 0;
  const auto connect = [&] {
    tcp::socket one(loop, tcp::v4());
    one.set_option(asio::socket_base::linger(true, 0));
    one.connect(address);
    return one;
  };
  std::deque<tcp::socket> clients;
  clients.push_back(connect());
  listener.take_queue([&](const tcp::socket&) {
    ++taken;
    clients.clear();
    if (taken < 2 * kMostQueued) clients.push_back(connect());
  });
  EXPECT_EQ(taken, kMostQueued);
}

}  // namespace
}  // namespace ddprun::store
