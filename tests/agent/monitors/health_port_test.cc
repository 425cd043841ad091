// The health port with a real client.
#include "agent/monitors/health_port.h"

#include <gtest/gtest.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <deque>
#include <string>

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using asio::ip::tcp;

class HealthPortTest : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = HealthPort::open(loop, 0, [this] { return state; });
    ASSERT_TRUE(opened.has_value()) << opened.error().message();
    port = std::move(*opened);
  }
  tcp::socket connected() {
    tcp::socket client(loop);
    client.connect({asio::ip::address_v4::loopback(), port->port()});
    return client;
  }
  // All that the server says until it closes the connection.
  std::string answer(tcp::socket& client) {
    std::string text;
    bool over = false;
    asio::async_read(client, asio::dynamic_buffer(text),
                     [&](boost::system::error_code, std::size_t) { over = true; });
    const auto deadline = std::chrono::steady_clock::now() + 30s;
    while (!over && std::chrono::steady_clock::now() < deadline) {
      loop.restart();
      loop.run_one_for(1s);
    }
    EXPECT_TRUE(over);
    return text;
  }
  std::string ask(const std::string& request) {
    tcp::socket client = connected();
    asio::write(client, asio::buffer(request));
    return answer(client);
  }

  asio::io_context loop{1};
  std::string state = "alive";
  std::unique_ptr<HealthPort> port;
};

TEST_F(HealthPortTest, AnswersGetWithTheStateOfNow) {
  EXPECT_TRUE(ask("GET / HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 200 OK\r\n"));
  state = "later";
  EXPECT_TRUE(ask("GET /healthz HTTP/1.0\r\n\r\n").ends_with("\r\n\r\nlater"));
}

TEST_F(HealthPortTest, AnswersHeadWithoutABody) {
  const std::string text = ask("HEAD / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(text.starts_with("HTTP/1.1 200 OK\r\n")) << text;
  EXPECT_TRUE(text.ends_with("\r\n\r\n")) << text;
  EXPECT_NE(text.find("Content-Length: 5\r\n"), std::string::npos) << text;
}

TEST_F(HealthPortTest, TakesNoOtherMethod) {
  const std::string text = ask("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
  EXPECT_TRUE(text.starts_with("HTTP/1.1 405 ")) << text;
}

TEST_F(HealthPortTest, RefusesWhatIsNoRequestOrTooLong) {
  EXPECT_TRUE(ask("hello\r\n\r\n").starts_with("HTTP/1.1 400 "));
  EXPECT_TRUE(
      ask("GET /" + std::string(16'384, 'x') + " HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 431 "));
}

TEST_F(HealthPortTest, OneProbeTooManyTakesThePlaceOfTheOldest) {
  std::deque<tcp::socket> waiting;
  for (int probe = 0; probe < kMostProbes; ++probe) waiting.push_back(connected());
  EXPECT_TRUE(ask("GET / HTTP/1.1\r\nHost: x\r\n\r\n").ends_with("alive"));
  EXPECT_EQ(answer(waiting.front()), "");
  asio::write(waiting.back(), asio::buffer(std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n")));
  EXPECT_TRUE(answer(waiting.back()).ends_with("alive"));
}

TEST_F(HealthPortTest, WhoDoesNotAskInTimeIsClosed) {
  port = std::move(*HealthPort::open(
      loop, 0, [] { return ""; }, 1ms));
  tcp::socket silent = connected();
  EXPECT_EQ(answer(silent), "");
}

TEST_F(HealthPortTest, APortThatIsTakenIsAnError) {
  const auto second = HealthPort::open(loop, port->port(), [] { return ""; });
  ASSERT_FALSE(second.has_value());
  EXPECT_NE(second.error().message().find(std::to_string(port->port())), std::string::npos);
}

}  // namespace
}  // namespace ddprun::agent
