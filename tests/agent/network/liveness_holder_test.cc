#include "agent/network/liveness_holder.h"

#include <gtest/gtest.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

namespace ddprun::agent {
namespace {

namespace asio = boost::asio;
using asio::ip::address;
using asio::ip::tcp;

// ---- who may stay ----

class LivenessPlacesTest : public testing::Test {
 protected:
  std::optional<LivenessPlaces::Number> take(int host) {
    return places.take(next++,
                       asio::ip::make_address_v4(0x0a000000U + static_cast<unsigned>(host)));
  }

  LivenessPlaces places{4};
  LivenessPlaces::Number next = 0;
};

TEST_F(LivenessPlacesTest, AllStayWhileThereIsRoom) {
  for (int host = 0; host < 4; ++host) EXPECT_EQ(take(host), std::nullopt);
  EXPECT_EQ(places.size(), 4U);
}

TEST_F(LivenessPlacesTest, TheFirstOfManyAddressesStay) {
  for (int host = 0; host < 4; ++host) take(host);
  EXPECT_EQ(take(9), 4U) << "the new one";
  EXPECT_EQ(places.size(), 4U);
}

TEST_F(LivenessPlacesTest, WhoComesAgainTakesItsOwnPlace) {
  for (int host = 0; host < 4; ++host) take(host);
  EXPECT_EQ(take(2), 2U);
}

// One address opens one after another, and keeps no other out.
TEST_F(LivenessPlacesTest, TheAddressWithTheMostMakesRoom) {
  for (const int host : {1, 7, 7, 7}) take(host);
  EXPECT_EQ(take(7), 1U) << "its own oldest";
  EXPECT_EQ(take(2), 2U);
  EXPECT_EQ(take(3), 3U);
  EXPECT_EQ(take(4), 7U) << "the new one: each address has one";
  places.leave(0);
  EXPECT_EQ(take(4), std::nullopt);
}

TEST_F(LivenessPlacesTest, WhoLeftHasNoPlace) {
  for (const int host : {7, 7, 7, 7}) take(host);
  for (LivenessPlaces::Number one = 0; one < 4; ++one) places.leave(one);
  places.leave(99);
  EXPECT_EQ(places.size(), 0U);
  for (int host = 0; host < 4; ++host) EXPECT_EQ(take(host), std::nullopt);
}

// ---- what is held ----

class LivenessHolderTest : public testing::Test {
 protected:
  tcp::socket connect(const char* says = "\x02") {
    tcp::socket client(loop);
    client.connect(acceptor.local_endpoint());
    asio::write(client, asio::buffer(says, 1));
    tcp::socket served = acceptor.accept();
    served.wait(tcp::socket::wait_read);
    served.non_blocking(true);
    holder->hold(std::move(served));
    return client;
  }
  static boost::system::error_code end_of(tcp::socket& client) {
    std::array<char, 1> byte{};
    boost::system::error_code ended;
    asio::read(client, asio::buffer(byte), ended);
    return ended;
  }
  void run_until_held(std::size_t many) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (holder->size() != many && std::chrono::steady_clock::now() < deadline) {
      loop.restart();
      loop.run_one_for(std::chrono::milliseconds(100));
    }
    EXPECT_EQ(holder->size(), many);
  }

  asio::io_context loop{1};
  tcp::acceptor acceptor{loop, tcp::endpoint(asio::ip::address_v4::loopback(), 0)};
  std::optional<LivenessHolder> holder{std::in_place, 2};
};

// Its kernel does the same when the process dies.
TEST_F(LivenessHolderTest, AtItsEndEachNodeIsToldByAClose) {
  tcp::socket client = connect();
  EXPECT_EQ(holder->size(), 1U);
  holder.reset();
  EXPECT_EQ(end_of(client), asio::error::eof);
  loop.run();
}

TEST_F(LivenessHolderTest, WhoMakesRoomIsReset) {
  tcp::socket first = connect();
  const tcp::socket second = connect();
  const tcp::socket third = connect();
  EXPECT_EQ(end_of(first), asio::error::connection_reset);
  EXPECT_EQ(holder->size(), 2U);
}

TEST_F(LivenessHolderTest, WhoHangsUpIsHeldNoMore) {
  tcp::socket client = connect();
  client.close();
  run_until_held(0);
}

TEST_F(LivenessHolderTest, WhoSpeaksOnIsHeldNoMore) {
  tcp::socket client = connect();
  asio::write(client, asio::buffer("?", 1));
  run_until_held(0);
}

}  // namespace
}  // namespace ddprun::agent
