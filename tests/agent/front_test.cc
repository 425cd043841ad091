#include "agent/front.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <optional>
#include <string>

namespace ddprun::agent {
namespace {

using asio::ip::tcp;

class FrontTest : public testing::Test {
 protected:
  FrontTest() {
    tcp::acceptor acceptor(loop, tcp::endpoint(asio::ip::address_v4::loopback(), 0), true);
    address = acceptor.local_endpoint();
    front.emplace(loop, std::move(acceptor),
                  Front::Handlers{
                      .store = [this](tcp::socket socket) { store_got.emplace(std::move(socket)); },
                      .rendezvous = [this](int fd) { rendezvous_fd = fd; }});
  }
  ~FrontTest() override {
    front.reset();
    loop.restart();
    loop.poll();
    if (rendezvous_fd >= 0) ::close(rendezvous_fd);
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

  asio::io_context loop{1};
  tcp::endpoint address;
  std::optional<Front> front;
  std::optional<tcp::socket> store_got;
  int rendezvous_fd = -1;
};

TEST_F(FrontTest, HandsAStoreClientOnWithNothingConsumed) {
  tcp::socket client = connect();
  const std::string hello("\0\xce\xf7\x85\x3c", 5);
  asio::write(client, asio::buffer(hello));
  run_until([&] { return store_got.has_value(); });
  std::string got(hello.size(), 'x');
  asio::read(*store_got, asio::buffer(got));
  EXPECT_EQ(got, hello);
}

TEST_F(FrontTest, HandsAnHttp2ClientOnWithNothingConsumed) {
  tcp::socket client = connect();
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  asio::write(client, asio::buffer(preface));
  run_until([&] { return rendezvous_fd >= 0; });
  std::string got(preface.size(), 'x');
  ASSERT_EQ(::read(rendezvous_fd, got.data(), got.size()), static_cast<ssize_t>(got.size()));
  EXPECT_EQ(got, preface);
}

TEST_F(FrontTest, ClosesAStranger) {
  tcp::socket client = connect();
  asio::write(client, asio::buffer("GET / HTTP/1.1\r\n", 16));
  bool closed = false;
  char byte = 0;
  asio::async_read(
      client, asio::buffer(&byte, 1),
      [&](boost::system::error_code error, std::size_t) { closed = static_cast<bool>(error); });
  run_until([&] { return closed; });
  EXPECT_FALSE(store_got.has_value());
  EXPECT_EQ(rendezvous_fd, -1);
}

TEST_F(FrontTest, ASilentConnectionDoesNotHoldUpTheNextOne) {
  const tcp::socket silent = connect();
  tcp::socket client = connect();
  asio::write(client, asio::buffer("\0", 1));
  run_until([&] { return store_got.has_value(); });
}

TEST_F(FrontTest, ClosesTheConnectionsBeyondItsLimit) {
  std::vector<tcp::socket> silent;
  constexpr std::size_t kBatch =
      64;  // below the listen backlog, so that connect() never waits for an accept
  while (silent.size() < kUndecidedLimit) {
    for (std::size_t i = 0; i < kBatch; ++i) silent.push_back(connect());
    loop.restart();
    loop.poll();
  }
  tcp::socket surplus = connect();
  bool closed = false;
  char byte = 0;
  asio::async_read(
      surplus, asio::buffer(&byte, 1),
      [&](boost::system::error_code error, std::size_t) { closed = static_cast<bool>(error); });
  run_until([&] { return closed; });
}

}  // namespace
}  // namespace ddprun::agent
