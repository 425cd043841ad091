#include "base/net/http/server.h"

#include <algorithm>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <list>
#include <optional>
#include <string_view>
#include <utility>

#include "base/net/listener.h"

namespace ddprun::http {
namespace {

namespace beast = boost::beast;
namespace wire = boost::beast::http;
using asio::ip::tcp;
using Time = std::chrono::steady_clock::time_point;

// An answer that must arrive before the connection is closed. The client's further bytes are read
// away for so long and so much. Unread bytes would make the kernel reset the connection, and the
// client would lose the answer.
constexpr std::chrono::seconds kLingerLimit{1};
constexpr std::size_t kLingerBytes = std::size_t{64} * 1024;
constexpr std::size_t kReadBytes = 2048;

using Parser = wire::request_parser<wire::empty_body>;
using Response = wire::response<wire::span_body<const char>>;

HttpResponse failure(wire::status status) {
  return {static_cast<unsigned>(status), "text/plain; charset=utf-8",
          std::string(wire::obsolete_reason(status)) + "\n"};
}

// If there are several headers, each must be ours.
bool is_asked_by_name(const Parser::value_type& request, const OwnNames& names) {
  const auto [first, last] = request.equal_range(wire::field::host);
  return std::all_of(first, last, [&names](const auto& field) {
    return is_own_name({field.value().data(), field.value().size()}, names);
  });
}

bool is_too_long(const beast::error_code& failed) {
  return failed == wire::error::header_limit || failed == wire::error::buffer_overflow;
}

// Returns whether the bytes are no request. Otherwise the connection is gone, or the client was too
// slow.
bool is_nonsense(const beast::error_code& failed) {
  return failed.category() == make_error_code(wire::error::bad_method).category() &&
         failed != wire::error::end_of_stream && failed != wire::error::partial_message;
}

// The page is one file of ours, and its texts come from other hosts. A browser must not take any of
// them for a script.
void set_headers(Response& response, const std::string& type) {
  response.set(wire::field::content_type, type);
  response.set(wire::field::cache_control, "no-store");
  response.set("X-Content-Type-Options", "nosniff");
  response.set("Content-Security-Policy",
               "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; "
               "base-uri 'none'; form-action 'none'");
}

struct Connection {
  Connection(tcp::socket socket, std::size_t head_bytes)
      : stream(std::move(socket)), buffer(head_bytes) {}

  beast::tcp_stream stream;
  beast::flat_buffer buffer;
  // For a request, or for the client's end. Nothing if an answer is on its way.
  std::optional<Time> waited_for_since = std::chrono::steady_clock::now();
};

using SharedConnection = std::shared_ptr<Connection>;
using SharedResponse = std::shared_ptr<const HttpResponse>;

// Reads what still comes and throws it away, until the client closes.
asio::awaitable<void> linger(SharedConnection connection) {
  connection->waited_for_since = std::chrono::steady_clock::now();
  beast::error_code ignored;
  connection->stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
  connection->stream.expires_after(kLingerLimit);
  for (std::size_t all = 0; all < kLingerBytes;) {
    connection->buffer.clear();
    const auto [failed, bytes] = co_await connection->stream.async_read_some(
        connection->buffer.prepare(kReadBytes), kAsTuple);
    if (failed) co_return;
    all += bytes;
  }
}

// Reads the head of one request. Beast limits each piece of a head that comes in several, so the
// bytes of the whole are counted here.
asio::awaitable<beast::error_code> read_head(SharedConnection connection, Parser& parser,
                                             std::size_t limit) {
  for (std::size_t all = 0; !parser.is_header_done();) {
    const auto [failed, bytes] =
        co_await wire::async_read_some(connection->stream, connection->buffer, parser, kAsTuple);
    if (failed) co_return failed;
    all += bytes;
    if (all > limit) co_return wire::error::header_limit;
  }
  co_return beast::error_code();
}

// Waits for the next request of a connection, with the time that lies between two. False if none
// came.
asio::awaitable<bool> hears_more(SharedConnection connection, std::chrono::milliseconds limit) {
  if (connection->buffer.size() > 0) co_return true;  // it came with the one before
  connection->stream.expires_after(limit);
  const auto [failed, bytes] =
      co_await connection->stream.async_read_some(connection->buffer.prepare(kReadBytes), kAsTuple);
  connection->buffer.commit(bytes);
  co_return !failed;
}

}  // namespace

struct Server::State {
  struct CachedPage {
    SharedResponse answer;
    Time at{};
  };

  State(tcp::acceptor bound, Pages all_pages, HttpLimits all_limits)
      : port(bound.local_endpoint().port()),
        listener(std::make_shared<Listener>(std::move(bound))),
        pages(std::move(all_pages)),
        limits(std::move(all_limits)) {}

  // Coroutines take the state and the connection by value, so that both live as long as they need.
  static asio::awaitable<void> serve(std::shared_ptr<State> self, SharedConnection connection);
  static asio::awaitable<bool> serve_one(std::shared_ptr<State> self, SharedConnection connection);
  static asio::awaitable<bool> send(std::shared_ptr<State> self, SharedConnection connection,
                                    SharedResponse answer, Parser::value_type request,
                                    bool keeps_open);

  bool make_room();
  SharedResponse answer_to(const Parser::value_type& request);
  SharedResponse made_page(const std::string& path, const std::function<HttpResponse()>& make);

  std::uint16_t port;
  std::shared_ptr<Listener> listener;
  Pages pages;
  HttpLimits limits;
  std::list<SharedConnection> connections;
  std::map<std::string, CachedPage> made;
  bool is_closed = false;
};

// ---- pages ----

SharedResponse Server::State::answer_to(const Parser::value_type& request) {
  if (limits.names && !is_asked_by_name(request, *limits.names))
    return std::make_shared<HttpResponse>(HttpResponse{
        static_cast<unsigned>(wire::status::misdirected_request), "text/plain; charset=utf-8",
        "The Host of the request is no name of this host. Ask by its address or name.\n"});
  const auto target = std::string_view(request.target().data(), request.target().size());
  auto found = pages.find(target.substr(0, target.find('?')));
  if (found == pages.end()) found = pages.find(std::string_view(kAnyPath));
  if (found == pages.end()) return std::make_shared<HttpResponse>(failure(wire::status::not_found));
  if (request.method() != wire::verb::get && request.method() != wire::verb::head)
    return std::make_shared<HttpResponse>(failure(wire::status::method_not_allowed));
  return made_page(found->first, found->second);
}

SharedResponse Server::State::made_page(const std::string& path,
                                        const std::function<HttpResponse()>& make) {
  const Time now = std::chrono::steady_clock::now();
  CachedPage& page = made[path];
  if (!page.answer || now - page.at >= limits.fresh_for)
    page = {std::make_shared<HttpResponse>(make()), now};
  return page.answer;
}

// ---- connections ----

// Closes the connection that has been waited for longest. False if all get an answer just now.
bool Server::State::make_room() {
  auto oldest = connections.end();
  for (auto next = connections.begin(); next != connections.end(); ++next) {
    const auto& since = (*next)->waited_for_since;
    if (since && (oldest == connections.end() || *since < *(*oldest)->waited_for_since))
      oldest = next;
  }
  if (oldest == connections.end()) return false;
  (*oldest)->stream.close();  // its coroutine ends
  connections.erase(oldest);
  return true;
}

asio::awaitable<void> Server::State::serve(std::shared_ptr<State> self,
                                           SharedConnection connection) {
  // `while (co_await x)` is avoided: GCC 12 destroys the arguments of a call in a loop's condition
  // too soon.
  for (bool stays_open = true; stays_open;) {
    stays_open = co_await serve_one(self, connection);
    if (!stays_open) break;
    connection->waited_for_since = std::chrono::steady_clock::now();
    stays_open = co_await hears_more(connection, self->limits.idle);
  }
  connection->stream.close();
  self->connections.remove(connection);
}

// One request and its answer. False if the connection is at its end.
asio::awaitable<bool> Server::State::serve_one(std::shared_ptr<State> self,
                                               SharedConnection connection) {
  Parser parser;
  parser.header_limit(static_cast<std::uint32_t>(self->limits.head_bytes));
  parser.body_limit(boost::none);  // no body is ever read
  connection->stream.expires_after(self->limits.head);
  const auto failed = co_await read_head(connection, parser, self->limits.head_bytes);
  // No page may be made after the end of the server. The things that it tells of may be gone.
  if (self->is_closed) co_return false;
  if (failed && !is_too_long(failed) && !is_nonsense(failed)) co_return false;
  connection->waited_for_since.reset();
  SharedResponse answer;
  bool keeps_open = false;
  if (failed) {
    answer = std::make_shared<HttpResponse>(
        failure(is_too_long(failed) ? wire::status::request_header_fields_too_large
                                    : wire::status::bad_request));
  } else {
    const bool has_body = parser.chunked() || parser.content_length().value_or(0) > 0;
    keeps_open = parser.keep_alive() && !has_body && self->limits.idle.count() > 0;
    answer = self->answer_to(parser.get());
  }
  const Parser::value_type request = parser.get();
  co_return co_await send(self, connection, answer, request, keeps_open);
}

asio::awaitable<bool> Server::State::send(std::shared_ptr<State> self, SharedConnection connection,
                                          SharedResponse answer, Parser::value_type request,
                                          bool keeps_open) {
  Response response(static_cast<wire::status>(answer->status), request.version());
  set_headers(response, answer->type);
  if (response.result() == wire::status::method_not_allowed)
    response.set(wire::field::allow, "GET, HEAD");
  response.keep_alive(keeps_open);
  response.content_length(answer->body.size());
  // HEAD gets the same headers as GET and no body (RFC 9110, 9.3.2).
  if (request.method() != wire::verb::head)
    response.body() = beast::span<const char>(answer->body.data(), answer->body.size());
  connection->stream.expires_after(self->limits.answer);
  const auto [failed, bytes] = co_await wire::async_write(connection->stream, response, kAsTuple);
  if (failed) co_return false;
  if (!keeps_open) co_await linger(connection);
  co_return keeps_open && !self->is_closed;
}

// ---- the server ----

Server::Server(asio::io_context& loop, tcp::acceptor bound, Pages pages, HttpLimits limits)
    : state_(std::make_shared<State>(std::move(bound), std::move(pages), std::move(limits))) {
  spawn(loop, "HTTP port",
        Listener::run(state_->listener, [&loop, weak = std::weak_ptr(state_)](tcp::socket socket) {
          const auto state = weak.lock();
          if (!state || state->is_closed) return;  // closes it
          if (state->connections.size() >= state->limits.connections && !state->make_room()) return;
          auto connection =
              std::make_shared<Connection>(std::move(socket), state->limits.head_bytes);
          state->connections.push_back(connection);
          spawn(loop, "HTTP connection", State::serve(state, std::move(connection)));
        }));
}

Server::~Server() {
  state_->is_closed = true;
  state_->listener->close();
  for (const auto& connection : state_->connections) connection->stream.close();
}

std::uint16_t Server::port() const { return state_->port; }

std::size_t Server::connections() const { return state_->connections.size(); }

}  // namespace ddprun::http
