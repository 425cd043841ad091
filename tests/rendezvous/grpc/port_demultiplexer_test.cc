#include "rendezvous/grpc/port_demultiplexer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/grpc/liveness.h"
#include "rendezvous/trust/tls_probe.h"
#include "tests/store/descriptor_limit.h"

namespace ddprun::rendezvous {
namespace {

using asio::ip::tcp;

class PortDemultiplexerTest : public testing::Test {
 protected:
  PortDemultiplexerTest() { start({}); }
  ~PortDemultiplexerTest() override {
    demultiplexer.reset();
    loop.restart();
    loop.poll();
    for (const int fd : {rendezvous_fd, tls_fd})
      if (fd >= 0) ::close(fd);
  }

  void start(DemultiplexerLimits limits, bool takes_tls = true, bool takes_liveness = true) {
    tcp::acceptor acceptor(loop, tcp::endpoint(asio::ip::address_v4::loopback(), 0), true);
    address = acceptor.local_endpoint();
    demultiplexer.emplace(
        loop, std::move(acceptor),
        PortDemultiplexer::Handlers{
            .store = [this](tcp::socket socket) { store_got.emplace(std::move(socket)); },
            .rendezvous = [this](int fd) { rendezvous_fd = fd; },
            .rendezvous_by_tls =
                takes_tls ? [this](int fd) { tls_fd = fd; } : std::function<void(int)>(),
            .liveness =
                takes_liveness
                    ? [this](tcp::socket socket) { liveness_got.emplace(std::move(socket)); }
                    : std::function<void(tcp::socket)>()},
        limits);
  }

  tcp::socket connect() {
    tcp::socket socket(loop);
    socket.connect(address);
    return socket;
  }

  // Runs the loop until `done`; fails after the deadline.
  template <typename Done>
  void run_until(Done done) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!done() && std::chrono::steady_clock::now() < deadline) {
      loop.restart();
      loop.run_one_for(std::chrono::milliseconds(100));
    }
    ASSERT_TRUE(done());
  }

  // Whether the demultiplexer's end of `client` is closed, with nothing sent.
  void expect_closed(tcp::socket& client, boost::system::error_code by = {}) {
    boost::system::error_code ended;
    char byte = 0;
    asio::async_read(client, asio::buffer(&byte, 1),
                     [&](boost::system::error_code error, std::size_t) { ended = error; });
    run_until([&] { return static_cast<bool>(ended); });
    EXPECT_TRUE(!by || ended == by) << ended.message();
  }

  asio::io_context loop{1};
  tcp::endpoint address;
  std::optional<PortDemultiplexer> demultiplexer;
  std::optional<tcp::socket> store_got;
  std::optional<tcp::socket> liveness_got;
  int rendezvous_fd = -1;
  int tls_fd = -1;
};

TEST_F(PortDemultiplexerTest, HandsAStoreClientOnWithNothingConsumed) {
  tcp::socket client = connect();
  const std::string hello("\0\xce\xf7\x85\x3c", 5);
  asio::write(client, asio::buffer(hello));
  run_until([&] { return store_got.has_value(); });
  std::string got(hello.size(), 'x');
  asio::read(*store_got, asio::buffer(got));
  EXPECT_EQ(got, hello);
}

TEST_F(PortDemultiplexerTest, HandsAnHttp2ClientOnWithNothingConsumed) {
  tcp::socket client = connect();
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  asio::write(client, asio::buffer(preface));
  run_until([&] { return rendezvous_fd >= 0; });
  std::string got(preface.size(), 'x');
  ASSERT_EQ(::read(rendezvous_fd, got.data(), got.size()), static_cast<ssize_t>(got.size()));
  EXPECT_EQ(got, preface);
}

TEST_F(PortDemultiplexerTest, HandsATlsClientOnWithNothingConsumed) {
  tcp::socket client = connect();
  const std::string hello("\x16\x03\x01\x02\x00", 5);
  asio::write(client, asio::buffer(hello));
  run_until([&] { return tls_fd >= 0; });
  std::string got(hello.size(), 'x');
  ASSERT_EQ(::read(tls_fd, got.data(), got.size()), static_cast<ssize_t>(got.size()));
  EXPECT_EQ(got, hello);
  EXPECT_EQ(rendezvous_fd, -1);
}

// A connection that only ended would be tried again.
TEST_F(PortDemultiplexerTest, TellsATlsClientThatItIsNotTaken) {
  start({}, false);
  tcp::socket client = connect();
  asio::write(client, asio::buffer("\x16\x03\x01\x02\x00", 5));
  std::array<unsigned char, 7> alert{};
  bool answered = false;
  asio::async_read(client, asio::buffer(alert), [&](boost::system::error_code error, std::size_t) {
    EXPECT_FALSE(error) << error.message();
    answered = true;
  });
  run_until([&] { return answered; });
  EXPECT_EQ(alert, rendezvous::kNoTlsAlert);
  expect_closed(client);
}

TEST_F(PortDemultiplexerTest, HandsALivenessConnectionOnWithNothingConsumed) {
  tcp::socket client = connect();
  asio::write(client, asio::buffer(&rendezvous::kLivenessFirstByte, 1));
  run_until([&] { return liveness_got.has_value(); });
  char got = 'x';
  asio::read(*liveness_got, asio::buffer(&got, 1));
  EXPECT_EQ(got, rendezvous::kLivenessFirstByte);
}

// It must not end as a dead process ends it.
TEST_F(PortDemultiplexerTest, ResetsALivenessConnectionThatNobodyHolds) {
  start({}, true, false);
  tcp::socket client = connect();
  asio::write(client, asio::buffer(&rendezvous::kLivenessFirstByte, 1));
  expect_closed(client, asio::error::connection_reset);
}

TEST_F(PortDemultiplexerTest, ClosesAnUnauthenticatedPeer) {
  tcp::socket client = connect();
  asio::write(client, asio::buffer("GET / HTTP/1.1\r\n", 16));
  expect_closed(client);
  EXPECT_FALSE(store_got.has_value());
  EXPECT_EQ(rendezvous_fd, -1);
}

TEST_F(PortDemultiplexerTest, ASilentConnectionDoesNotHoldUpTheNextOne) {
  const tcp::socket silent = connect();
  tcp::socket client = connect();
  asio::write(client, asio::buffer("\0", 1));
  run_until([&] { return store_got.has_value(); });
}

TEST_F(PortDemultiplexerTest, ClosesAConnectionThatSaysNothingForTooLong) {
  constexpr std::chrono::milliseconds limit{50};
  start({.first_byte = limit});
  const auto before = std::chrono::steady_clock::now();
  tcp::socket silent = connect();
  expect_closed(silent);
  EXPECT_GE(std::chrono::steady_clock::now() - before, limit);
  EXPECT_EQ(demultiplexer->undecided(), 0U);
}

TEST_F(PortDemultiplexerTest, AtItsLimitTheOldestSilentConnectionMakesRoom) {
  start({.undecided = 3});
  std::vector<tcp::socket> silent;
  for (std::size_t i = 0; i < 3; ++i) {
    silent.push_back(connect());
    run_until([&] { return demultiplexer->undecided() == i + 1; });
  }
  tcp::socket newcomer = connect();
  expect_closed(silent[0]);
  EXPECT_EQ(demultiplexer->undecided(), 3U);
  asio::write(newcomer, asio::buffer("\0", 1));
  run_until([&] { return store_got.has_value(); });
  asio::write(silent[1], asio::buffer("P", 1));  // still let in
  run_until([&] { return rendezvous_fd >= 0; });
}

// Asio hands the state of a closed socket to the next one. With it goes a readiness that was on its
// way.
TEST_F(PortDemultiplexerTest, TheByteOfOneThatMadeRoomDoesNotEndTheOneInItsPlace) {
  start({.undecided = 4});
  std::vector<tcp::socket> silent;
  for (std::size_t i = 0; i < 4; ++i) {
    silent.push_back(connect());
    run_until([&] { return demultiplexer->undecided() == i + 1; });
  }
  std::vector<tcp::socket> newcomers;
  for (int i = 0; i < 3; ++i) newcomers.push_back(connect());
  asio::write(silent[1], asio::buffer("\0", 1));
  expect_closed(silent[2]);
  EXPECT_EQ(demultiplexer->undecided(), 4U);
  asio::write(newcomers[2], asio::buffer("P", 1));
  run_until([&] { return rendezvous_fd >= 0; });
}

TEST_F(PortDemultiplexerTest, AtTheReserveOfDescriptorsTheOldestSilentConnectionMakesRoom) {
  std::optional<DescriptorLimit> lowered(std::in_place,
                                         static_cast<rlim_t>(lowest_free_descriptor() + 40));
  start({});
  lowered.reset();  // the demultiplexer keeps to what it read; this test's own ends need not
  std::vector<tcp::socket> silent;
  while (silent.size() < 40) silent.push_back(connect());
  expect_closed(silent[0]);
  EXPECT_LT(demultiplexer->undecided(), silent.size());
  asio::write(silent.back(), asio::buffer("\0", 1));
  run_until([&] { return store_got.has_value(); });
}

// A worker of the old attempt that connected and died, or that the agent could not kill in time.
TEST_F(PortDemultiplexerTest, AResetClosesWhatItHoldsAndWhatWaitsInTheKernel) {
  tcp::socket held = connect();
  run_until([&] { return demultiplexer->undecided() == 1; });
  tcp::socket spoke = connect();
  run_until([&] { return demultiplexer->undecided() == 2; });
  asio::write(spoke, asio::buffer("\0", 1));  // the loop has not looked yet
  tcp::socket queued = connect();             // nor accepted this one
  asio::write(queued, asio::buffer("\0", 1));
  demultiplexer->reset();
  EXPECT_EQ(demultiplexer->undecided(), 0U);
  expect_closed(held);
  expect_closed(spoke);
  expect_closed(queued);
  EXPECT_FALSE(store_got.has_value());
  tcp::socket next = connect();
  asio::write(next, asio::buffer("\0", 1));
  run_until([&] { return store_got.has_value(); });
}

TEST_F(PortDemultiplexerTest, AResetKeepsTheConnectionsOfNodes) {
  tcp::socket held = connect();
  run_until([&] { return demultiplexer->undecided() == 1; });
  asio::write(held, asio::buffer("P", 1));
  demultiplexer->reset();
  run_until([&] { return rendezvous_fd >= 0; });
  ::close(std::exchange(rendezvous_fd, -1));
  tcp::socket queued = connect();
  asio::write(queued, asio::buffer("P", 1));
  demultiplexer->reset();
  EXPECT_GE(rendezvous_fd, 0);
}

}  // namespace
}  // namespace ddprun::rendezvous
