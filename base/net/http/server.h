// A small HTTP/1.1 server for pages that are made when they are asked for. It knows GET and HEAD of
// a few fixed paths. It knows nothing of what they say. Anybody may connect, so everything is
// bounded. These are the request's head in size and time, a client's time for an answer, and the
// number of connections. A request's body is never read. A page is made at most once in
// `fresh_for`, however many ask. Runs on the loop's thread, which must outlive the server.
// Coroutines that still run at the server's end finish by themselves.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/loop.h"
#include "base/net/http/own_names.h"

namespace ddprun::http {

struct HttpResponse {
  unsigned status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

// By path, without a query. The page of kAnyPath answers for all paths that are not named.
using Pages = std::map<std::string, std::function<HttpResponse()>, std::less<>>;
inline constexpr const char* kAnyPath = "*";

struct HttpLimits {
  std::size_t head_bytes = 8192;  // 2048 or more
  // From the connection, or from the first byte of a later request, until the whole head is here.
  std::chrono::milliseconds head{5000};
  std::chrono::milliseconds answer{10'000};  // until the client has taken the answer
  // Between two requests of a connection. Prometheus asks every 15 or 60 s. 0: one request each.
  std::chrono::milliseconds idle{90'000};
  // One more comes: that one is closed which has been waited for longest. So those who connect and
  // say nothing keep nobody out.
  std::size_t connections = 64;
  std::chrono::milliseconds fresh_for{100};
  // The names that `Host` may have (own_names.h). Unset: any.
  std::optional<OwnNames> names{};
};

class Server {
 public:
  // Listens on `bound` until its own end. The pages are not called after that.
  Server(asio::io_context& loop, asio::ip::tcp::acceptor bound, Pages pages,
         HttpLimits limits = {});
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  Server(Server&&) = delete;
  Server& operator=(Server&&) = delete;
  ~Server();

  std::uint16_t port() const;
  // Those that are open now.
  std::size_t connections() const;

 private:
  struct State;  // shared with the coroutines

  std::shared_ptr<State> state_;
};

}  // namespace ddprun::http
