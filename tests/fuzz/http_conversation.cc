// The HTTP server over real loopback connections. The input is a script: which connection is
// opened, what it sends, when it goes. Answers are well formed. Requests that were put together get
// the right answers. Bytes that came in pieces get the same answers as in one piece.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/net/http/server.h"
#include "tests/fuzz/loopback_listener.h"
#include "tests/fuzz/script_input.h"

namespace ddprun::fuzz {
namespace {

using asio::ip::tcp;

constexpr std::size_t kMostClients = 6;
constexpr std::size_t kMostConnections = 3;
constexpr std::size_t kHeadBytes = 2048;
// Nothing here takes more than moments; a machine that stands still is no finding.
constexpr std::chrono::seconds kDeadline{20};
// No time-out comes in a run, and each page is made once.
constexpr http::HttpLimits kLimits{.head_bytes = kHeadBytes,
                                   .head = std::chrono::hours(1),
                                   .answer = std::chrono::hours(1),
                                   .idle = std::chrono::hours(1),
                                   .connections = kMostConnections,
                                   .fresh_for = std::chrono::hours(1)};
const std::map<std::string, std::string, std::less<>> kPages = {
    {"/", "<p>page</p>\n"}, {"/metrics", "metric 1\n"}, {"/healthz", "ok\n"}};

constexpr std::array<const char*, 6> kMethods = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"};
constexpr std::array<const char*, 7> kTargets = {"/",       "/metrics",  "/healthz",   "/none",
                                                 "/?a=b/c", "/metrics?", "/metrics/.."};
// Whether a request with these is the last one of its connection.
struct Headers {
  const char* text;
  bool is_last;
};
constexpr std::array<Headers, 6> kHeaders = {{{"", false},
                                              {"Host: a\r\nAccept: */*\r\n", false},
                                              {"Connection: close\r\n", true},
                                              {"Content-Length: 0\r\n", false},
                                              {"Content-Length: 5\r\n", true},
                                              {"Transfer-Encoding: chunked\r\n", true}}};

struct Answer {
  int status = 0;
  std::string body{};

  bool operator==(const Answer&) const = default;
};

// Returns the answer to a request, by the server's description alone.
Answer wanted(std::string_view method, std::string_view target) {
  const auto page = kPages.find(target.substr(0, target.find('?')));
  const bool is_head = method == "HEAD";
  if (page == kPages.end()) return {404, is_head ? "" : "Not Found\n"};
  if (method != "GET" && !is_head) return {405, "Method Not Allowed\n"};
  return {200, is_head ? "" : page->second};
}

std::optional<std::size_t> content_length(std::string_view head) {
  constexpr std::string_view kName = "Content-Length: ";
  const auto at = head.find(kName);
  if (at == std::string_view::npos) return std::nullopt;
  std::size_t length = 0;
  const char* const begin = head.data() + at + kName.size();
  const auto [end, failed] = std::from_chars(begin, head.data() + head.size(), length);
  return failed == std::errc() ? std::optional(length) : std::nullopt;
}

// All answers in `text`, each of which is whole. An answer to HEAD has a length and no body: the
// next one, or the end, follows at once.
std::vector<Answer> parse(std::string_view text) {
  std::vector<Answer> answers;
  while (!text.empty()) {
    DDPRUN_ASSERT(text.starts_with("HTTP/1."));
    const auto end = text.find("\r\n\r\n");
    DDPRUN_ASSERT(end != std::string_view::npos);
    const std::string_view head = text.substr(0, end + 2);
    text.remove_prefix(end + 4);
    Answer answer;
    std::from_chars(head.data() + 9, head.data() + 12, answer.status);
    constexpr std::array kKnown = {200, 400, 404, 405, 431};
    DDPRUN_ASSERT(std::ranges::find(kKnown, answer.status) != kKnown.end());
    DDPRUN_ASSERT(head.find("X-Content-Type-Options: nosniff") != std::string_view::npos);
    DDPRUN_ASSERT(head.find("default-src 'none'") != std::string_view::npos);
    const auto length = content_length(head);
    DDPRUN_ASSERT(length.has_value());
    if (!text.empty() && !text.starts_with("HTTP/1.")) {
      DDPRUN_ASSERT(text.size() >= *length);
      answer.body = text.substr(0, *length);
      text.remove_prefix(*length);
    }
    answers.push_back(std::move(answer));
  }
  return answers;
}

// Beast waits for more of some bytes that come in pieces, and refuses them in one.
std::vector<Answer> without_refusal(std::string_view text) {
  std::vector<Answer> answers = parse(text);
  if (!answers.empty() && (answers.back().status == 400 || answers.back().status == 431))
    answers.pop_back();
  return answers;
}

struct Client {
  int fd = -1;
  std::string sent{};
  std::string got{};
  std::vector<Answer> wanted{};  // as long as it is `tidy`
  bool is_tidy = true;           // all that it sent was put together from whole requests
  bool is_last = false;          // the last request that gets an answer was sent
  bool is_half_closed = false;
  bool is_at_end = false;     // the server has closed
  bool is_disturbed = false;  // somebody else needed its room, or it was reset: nothing is promised
};

class Site {
 public:
  Site() {
    tcp::acceptor acceptor = listen_on_loopback(loop_);
    address_.sin_family = AF_INET;
    const tcp::endpoint endpoint = acceptor.local_endpoint();
    address_.sin_port = htons(endpoint.port());
    address_.sin_addr.s_addr = htonl(endpoint.address().to_v4().to_uint());
    http::Pages pages;
    for (const auto& [path, text] : kPages)
      pages[path] = [this, &path = path, &text = text] {
        DDPRUN_ASSERT(++made_[path] == 1 && !is_over_);
        return http::HttpResponse{200, "text/plain", text};
      };
    server_.emplace(loop_, std::move(acceptor), std::move(pages), kLimits);
  }
  Site(const Site&) = delete;
  Site& operator=(const Site&) = delete;

  ~Site() {
    is_over_ = true;
    server_.reset();
    for (Client& client : clients_) close_at_once(client.fd);
    turn();
  }

  void run(ScriptInput script) {
    while (!script.empty()) {
      const std::uint8_t step = script.byte();
      if (clients_.empty() || step % 8 == 0) {
        connect();
        continue;
      }
      Client& client = clients_[step / 8 % clients_.size()];
      switch (step % 8) {
        case 1:
        case 2:
          send_bytes(client, script);
          break;
        case 3:
        case 4:
          send_request(client, script);
          break;
        case 5:
          leave(client, script.flag());
          break;
        case 6:
          turn();
          break;
        case 7:
          send_long_head(client, script);
          break;
      }
    }
    finish();
    for (std::size_t i = 0, count = clients_.size(); i < count; ++i) check(i);
  }

 private:
  void connect() {
    if (clients_.size() == kMostClients) return;
    // The server has a connection until both ends have closed it, and it has seen that.
    const auto open =
        std::ranges::count_if(clients_, [](const Client& one) { return one.fd >= 0; });
    if (open + unseen_resets_ >= static_cast<std::ptrdiff_t>(kMostConnections))
      for (Client& one : clients_) one.is_disturbed = true;
    clients_.push_back(connected());
  }

  Client connected() {
    Client client;
    client.fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    DDPRUN_ASSERT(client.fd >= 0);
    DDPRUN_ASSERT(
        ::connect(client.fd, reinterpret_cast<const sockaddr*>(&address_), sizeof(address_)) == 0);
    return client;
  }

  // False if the server has closed, so that nothing is promised any more of what comes now.
  static bool send(Client& client, std::string_view bytes) {
    if (client.fd < 0 || client.is_half_closed || client.is_disturbed) return false;
    const auto taken = ::send(client.fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (taken != static_cast<ssize_t>(bytes.size())) client.is_disturbed = true;
    if (!client.is_disturbed) client.sent += bytes;
    return !client.is_disturbed;
  }

  static void send_bytes(Client& client, ScriptInput& script) {
    const std::string bytes(script.bytes(1 + script.choice(64)));
    client.is_tidy = false;
    send(client, bytes);
  }

  static void send_request(Client& client, ScriptInput& script) {
    const std::string method = kMethods.at(script.choice(kMethods.size()));
    const std::string target = kTargets.at(script.choice(kTargets.size()));
    const Headers& headers = kHeaders.at(script.choice(kHeaders.size()));
    const bool is_old = script.choice(8) == 7;
    std::string request = method + ' ' + target + (is_old ? " HTTP/1.0" : " HTTP/1.1") + "\r\n" +
                          headers.text + "\r\n";
    if (std::string_view(headers.text).starts_with("Content-Length: 5")) request += "hello";
    if (!send(client, request) || client.is_last) return;
    client.wanted.push_back(fuzz::wanted(method, target));
    client.is_last = headers.is_last || is_old;
  }

  // Longer than a head may be, in one header or in many.
  static void send_long_head(Client& client, ScriptInput& script) {
    std::string request = "GET / HTTP/1.1\r\n";
    const std::string line = script.flag() ? "a: b\r\n" : "a";
    if (line.size() == 1) request += "a: ";
    while (request.size() <= 2 * kHeadBytes) request += line;
    if (!send(client, request + "\r\n\r\n") || client.is_last) return;
    client.wanted.push_back({431, "Request Header Fields Too Large\n"});
    client.is_last = true;
  }

  void leave(Client& client, bool politely) {
    if (client.fd < 0) return;
    if (politely) {
      client.is_half_closed = true;
      ::shutdown(client.fd, SHUT_WR);
    } else {
      client.is_disturbed = true;
      close_at_once(client.fd);
      ++unseen_resets_;
    }
  }

  static void receive(Client& client) {
    while (client.fd >= 0 && !client.is_at_end) {
      std::array<char, 4096> bytes{};
      const auto count = ::recv(client.fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (count < 0) client.is_disturbed = true;
      if (count <= 0) client.is_at_end = true;
      if (count > 0) client.got.append(bytes.data(), static_cast<std::size_t>(count));
    }
  }

  void turn() {
    loop_.restart();
    while (loop_.poll() > 0) {
    }
    unseen_resets_ = 0;
    if (server_) DDPRUN_ASSERT(server_->connections() <= kMostConnections);
    for (Client& client : clients_) receive(client);
  }

  // All clients say that no more comes. Then the server answers what it has, and closes.
  void finish() {
    for (Client& client : clients_) leave(client, true);
    const auto deadline = std::chrono::steady_clock::now() + kDeadline;
    for (turn(); !std::ranges::all_of(
             clients_, [](const Client& one) { return one.fd < 0 || one.is_at_end; });
         turn()) {
      DDPRUN_ASSERT(std::chrono::steady_clock::now() < deadline);
      loop_.restart();
      loop_.run_one_for(std::chrono::milliseconds(10));
    }
    // The server still reads away what comes until we have closed, too.
    for (Client& client : clients_) close_at_once(client.fd);
    turn();
  }

  void check(std::size_t number) {
    if (clients_[number].is_disturbed) return;
    const Client client = clients_[number];
    if (client.is_tidy) DDPRUN_ASSERT(parse(client.got) == client.wanted);
    DDPRUN_ASSERT(parse(client.got).size() <= client.sent.size());
    Client again = connected();
    send(again, client.sent);
    clients_.push_back(again);
    finish();
    DDPRUN_ASSERT(clients_.back().is_disturbed ||
                  without_refusal(clients_.back().got) == without_refusal(client.got));
    clients_.pop_back();
  }

  // With a reset: a polite close would keep the port for a minute, and ports would run out.
  static void close_at_once(int& fd) {
    if (fd < 0) return;
    const linger none{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
    ::close(std::exchange(fd, -1));
  }

  asio::io_context loop_{1};
  sockaddr_in address_{};
  std::map<std::string, int, std::less<>> made_;
  bool is_over_ = false;
  std::ptrdiff_t unseen_resets_ = 0;
  std::optional<http::Server> server_;
  std::vector<Client> clients_;
};

}  // namespace
}  // namespace ddprun::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::fuzz::Site site;
  site.run(ddprun::fuzz::ScriptInput(data, std::min<std::size_t>(size, 1024)));
  return 0;
}
