// A node's end of the connections that tell of their leader's death, over loopback.
#include "rendezvous/grpc/liveness.h"

#include <gtest/gtest.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <string>
#include <vector>

namespace ddprun::rendezvous {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

class LivenessTest : public testing::Test {
 protected:
  // The leader's end of a new connection, of which the first byte was read.
  tcp::socket hold(const std::string& leader) {
    tcp::socket socket(loop);
    socket.connect(acceptor.local_endpoint());
    tcp::socket held = acceptor.accept();
    liveness.hold(leader, std::move(socket));
    std::array<char, 1> first{};
    asio::read(held, asio::buffer(first));
    EXPECT_EQ(first[0], kLivenessFirstByte);
    return held;
  }
  static void reset(tcp::socket& socket) {
    socket.set_option(tcp::socket::linger(true, 0));
    socket.close();
  }
  static bool is_dropped(tcp::socket& held) {
    std::array<char, 1> byte{};
    boost::system::error_code ended;
    asio::read(held, asio::buffer(byte), ended);  // the test's own deadline ends a wait
    return static_cast<bool>(ended);
  }
  // Until each connection has ended.
  void run() { loop.run_for(std::chrono::seconds(10)); }

  asio::io_context loop{1};
  tcp::acceptor acceptor{loop, tcp::endpoint(asio::ip::address_v4::loopback(), 0)};
  std::vector<std::string> told;
  LivenessConnections liveness{[this](const std::string& leader) { told.push_back(leader); }};
};

TEST_F(LivenessTest, AClosedConnectionIsTold) {
  tcp::socket held = hold("a");
  liveness.followed();
  held.close();
  run();
  EXPECT_EQ(told, std::vector<std::string>{"a"});
}

TEST_F(LivenessTest, AResetSaysNothing) {
  tcp::socket held = hold("a");
  reset(held);
  run();
  EXPECT_TRUE(told.empty());
}

// Nobody of ours speaks there.
TEST_F(LivenessTest, WhatIsSaidThereSaysNothing) {
  tcp::socket held = hold("a");
  asio::write(held, asio::buffer("?", 1));
  held.close();
  run();
  EXPECT_TRUE(told.empty());
}

// A process that dies may take one more connection, which its kernel resets.
TEST_F(LivenessTest, TheOneOfTheLeaderThatLetUsInStaysUntilThereIsAnother) {
  tcp::socket first = hold("a");
  liveness.followed();
  tcp::socket second = hold("a");
  reset(second);
  first.close();
  run();
  EXPECT_EQ(told, std::vector<std::string>{"a"});
}

TEST_F(LivenessTest, WhoIsFollowedTakesThePlaceOfTheOneBefore) {
  tcp::socket first = hold("a");
  liveness.followed();
  const tcp::socket second = hold("b");
  liveness.followed();
  EXPECT_TRUE(is_dropped(first));
  loop.poll();
  EXPECT_TRUE(told.empty());
}

TEST_F(LivenessTest, OneThatWasNotFollowedGoes) {
  tcp::socket first = hold("a");
  const tcp::socket second = hold("a");
  EXPECT_TRUE(is_dropped(first));
}

TEST_F(LivenessTest, NothingIsToldAfterItsEnd) {
  tcp::socket held = hold("a");
  held.close();
  liveness.drop_all();
  run();
  EXPECT_TRUE(told.empty());
}

}  // namespace
}  // namespace ddprun::rendezvous
