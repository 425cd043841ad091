// The server with real clients, some of which are not polite.
#include "base/net/http/server.h"

#include <gtest/gtest.h>

#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <deque>

#include "base/net/listener.h"

namespace ddprun::http {
namespace {

using namespace std::chrono_literals;
using asio::ip::tcp;

const std::string kGet = "GET /a HTTP/1.1\r\nHost: x\r\n\r\n";
const std::string kLastGet = "GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

class HttpServer : public testing::Test {
 protected:
  void serve(HttpLimits limits) {
    auto bound = bind_listener(loop, "127.0.0.1", 0);
    ASSERT_TRUE(bound.has_value()) << bound.error().message();
    Pages pages = {{"/a", [this] {
                      ++made;
                      return HttpResponse{status, "text/plain", body};
                    }}};
    server = std::make_unique<Server>(loop, std::move(*bound), std::move(pages), limits);
  }
  void SetUp() override { serve({.fresh_for = 0ms}); }

  tcp::socket connected() {
    tcp::socket client(loop);
    client.connect({asio::ip::address_v4::loopback(), server->port()});
    return client;
  }
  // Runs the loop until `over`. False if that was in vain.
  bool run_until(const std::function<bool()>& over) {
    const auto deadline = std::chrono::steady_clock::now() + 30s;
    while (!over() && std::chrono::steady_clock::now() < deadline) {
      loop.restart();
      loop.run_one_for(1s);
    }
    return over();
  }
  // All that the server says until it closes the connection.
  std::string rest(tcp::socket& client) {
    std::string text;
    bool over = false;
    asio::async_read(client, asio::dynamic_buffer(text),
                     [&](boost::system::error_code, std::size_t) { over = true; });
    EXPECT_TRUE(run_until([&] { return over; }));
    return text;
  }
  // Returns the bytes up to the end of its next answer, whose body is `body`.
  std::string next(tcp::socket& client) {
    std::string text;
    bool over = false;
    asio::async_read_until(client, asio::dynamic_buffer(text), "\r\n\r\n" + body,
                           [&](boost::system::error_code, std::size_t) { over = true; });
    EXPECT_TRUE(run_until([&] { return over; }));
    return text;
  }
  std::string ask(const std::string& request) {
    tcp::socket client = connected();
    asio::write(client, asio::buffer(request));
    return rest(client);
  }

  asio::io_context loop{1};
  std::string body = "alive";
  unsigned status = 200;
  int made = 0;
  std::unique_ptr<Server> server;
};

TEST_F(HttpServer, AnswersNobodyWhoAsksForAnotherHost) {
  serve({.fresh_for = 0ms, .names = OwnNames{.host = "x", .domains = {}}});
  EXPECT_TRUE(ask(kLastGet).starts_with("HTTP/1.1 200 "));
  EXPECT_TRUE(ask("GET /a HTTP/1.0\r\n\r\n").starts_with("HTTP/1.0 200 "));
  const int before = made;
  for (const char* hosts : {"Host: evil.example\r\n", "Host: evil.example:80\r\n",
                            "Host: x\r\nHost: evil.example\r\n", "Host: x.evil.example\r\n"}) {
    const std::string answer =
        ask(std::string("GET /a HTTP/1.1\r\nConnection: close\r\n") + hosts + "\r\n");
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 421 ")) << answer;
    EXPECT_EQ(answer.find(body), std::string::npos) << answer;
  }
  EXPECT_EQ(made, before);
}

TEST_F(HttpServer, AnswersGetWithThePageOfNow) {
  EXPECT_TRUE(ask(kLastGet).starts_with("HTTP/1.1 200 OK\r\n"));
  body = "later";
  const std::string text = ask("GET /a?x=1 HTTP/1.0\r\n\r\n");
  EXPECT_TRUE(text.ends_with("\r\n\r\nlater")) << text;
  EXPECT_NE(text.find("Content-Type: text/plain\r\n"), std::string::npos) << text;
  status = 503;
  EXPECT_TRUE(ask(kLastGet).starts_with("HTTP/1.1 503 Service Unavailable\r\n"));
}

TEST_F(HttpServer, AnswersHeadWithoutABody) {
  const std::string text = ask("HEAD /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(text.starts_with("HTTP/1.1 200 OK\r\n")) << text;
  EXPECT_TRUE(text.ends_with("\r\n\r\n")) << text;
  EXPECT_NE(text.find("Content-Length: 5\r\n"), std::string::npos) << text;
}

TEST_F(HttpServer, KnowsNoOtherPathAndNoOtherMethod) {
  EXPECT_TRUE(ask("GET /b HTTP/1.0\r\n\r\n").starts_with("HTTP/1.0 404 "));
  EXPECT_TRUE(ask("GET /a/ HTTP/1.0\r\n\r\n").starts_with("HTTP/1.0 404 "));
  const std::string text = ask("DELETE /a HTTP/1.0\r\n\r\n");
  EXPECT_TRUE(text.starts_with("HTTP/1.0 405 ")) << text;
  EXPECT_NE(text.find("Allow: GET, HEAD\r\n"), std::string::npos) << text;
  EXPECT_EQ(made, 0);
}

TEST_F(HttpServer, AConnectionMayAskAgain) {
  tcp::socket client = connected();
  for (int i = 0; i < 3; ++i) {
    asio::write(client, asio::buffer(kGet));
    EXPECT_TRUE(next(client).starts_with("HTTP/1.1 200 OK\r\n"));
  }
  asio::write(client, asio::buffer(kGet + kLastGet));  // at once
  const std::string text = rest(client);
  EXPECT_NE(text.find("alive", text.find("alive") + 1), std::string::npos) << text;
  EXPECT_EQ(made, 5);
}

TEST_F(HttpServer, AnswersWhoSendsABodyAndReadsNoneOfIt) {
  const std::string text = ask("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n" +
                               std::string(60'000, 'x'));
  EXPECT_TRUE(text.starts_with("HTTP/1.1 405 ")) << text;
  EXPECT_TRUE(ask("POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
                  .starts_with("HTTP/1.1 405 "));
  EXPECT_TRUE(
      ask("POST /a HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n").starts_with("HTTP/1.1 405 "));
}

TEST_F(HttpServer, RefusesWhatIsNoRequestOrTooLong) {
  EXPECT_TRUE(ask("hello\r\n\r\n").starts_with("HTTP/1.1 400 "));
  EXPECT_TRUE(ask(std::string("\x16\x03\x01\x02\x00\x01\x00", 7)).starts_with("HTTP/1.1 400 "))
      << "a hello of TLS";
  EXPECT_TRUE(
      ask("GET /a HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n").starts_with("HTTP/1.1 400 "));
  EXPECT_TRUE(
      ask("GET /" + std::string(16'384, 'x') + " HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 431 "));
  EXPECT_TRUE(
      ask("GET /a HTTP/1.1\r\nA: " + std::string(1 << 20, 'x')).starts_with("HTTP/1.1 431 "))
      << "a head without an end";
  EXPECT_EQ(made, 0);
}

TEST_F(HttpServer, WhoSendsHalfARequestIsClosedInTime) {
  serve({.head = 50ms});
  for (const std::string half : {"", "GET /a HT", "GET /a HTTP/1.1\r\nHost: x\r\n"}) {
    EXPECT_EQ(ask(half), "") << half;
  }
  tcp::socket client = connected();
  asio::write(client, asio::buffer(kGet + "GET"));  // the second one is not whole
  EXPECT_TRUE(rest(client).ends_with("alive"));
  EXPECT_EQ(server->connections(), 0U);
}

TEST_F(HttpServer, AnIdleConnectionIsClosedInTime) {
  serve({.idle = 50ms});
  tcp::socket client = connected();
  asio::write(client, asio::buffer(kGet));
  EXPECT_TRUE(rest(client).ends_with("alive"));
  serve({.idle = 0ms});
  EXPECT_NE(ask(kGet).find("Connection: close\r\n"), std::string::npos);
}

TEST_F(HttpServer, WhoDoesNotTakeTheAnswerIsClosedInTime) {
  serve({.answer = 50ms, .fresh_for = 0ms});
  body = std::string(64 << 20, 'x');
  tcp::socket client = connected();
  asio::write(client, asio::buffer(kGet));
  EXPECT_TRUE(run_until([&] { return made == 1; }));
  EXPECT_TRUE(run_until([&] { return server->connections() == 0; }));
}

// 200 that send a byte and no more; those who ask are answered at once, and descriptors are
// bounded.
TEST_F(HttpServer, SlowConnectionsKeepNobodyOut) {
  std::deque<tcp::socket> slow;
  for (int i = 0; i < 200; ++i) {
    slow.push_back(connected());
    asio::write(slow.back(), asio::buffer(std::string("G")));
    if (i % 20 == 0) {
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_TRUE(ask(kLastGet).ends_with("alive"));
      EXPECT_LT(std::chrono::steady_clock::now() - begin, HttpLimits{}.head);
    }
    EXPECT_LE(server->connections(), HttpLimits{}.connections);
  }
  EXPECT_TRUE(ask(kLastGet).ends_with("alive"));
  EXPECT_EQ(rest(slow.front()), "") << "the oldest is closed";
  asio::write(slow.back(), asio::buffer(kLastGet.substr(1)));
  EXPECT_TRUE(rest(slow.back()).ends_with("alive")) << "the newest is not";
}

TEST_F(HttpServer, APageIsMadeOnceInAWhile) {
  serve({.fresh_for = 1h});
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(ask(kLastGet).ends_with("alive"));
  EXPECT_EQ(made, 1);
}

TEST_F(HttpServer, EndsWithConnectionsOpen) {
  tcp::socket waits = connected();
  tcp::socket half = connected();
  asio::write(half, asio::buffer(std::string("GET /a")));
  EXPECT_TRUE(ask(kLastGet).ends_with("alive"));
  const auto port = server->port();
  server.reset();
  EXPECT_EQ(rest(waits), "");
  EXPECT_EQ(rest(half), "");
  tcp::socket late(loop);
  boost::system::error_code refused;
  late.connect({asio::ip::address_v4::loopback(), port}, refused);
  EXPECT_TRUE(refused);
  EXPECT_EQ(made, 1);
}

}  // namespace
}  // namespace ddprun::http
