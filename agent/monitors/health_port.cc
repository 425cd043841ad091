#include "agent/monitors/health_port.h"

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <utility>

#include "agent/core/config.h"
#include "store/listener.h"

namespace ddprun::agent {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;

// A probe sends one line and a few headers, and no body. A stranger who sends more is cut off here.
constexpr std::uint32_t kMostHeaderBytes = 8192;

using Request = http::request_parser<http::empty_body>;

// The answer to one probe. HEAD gets the same headers as GET and no body (RFC 9110, 9.3.2).
http::response<http::string_body> answer_to(const Request::value_type& request,
                                            const std::string& state) {
  const bool is_get = request.method() == http::verb::get || request.method() == http::verb::head;
  http::response<http::string_body> answer(
      is_get ? http::status::ok : http::status::method_not_allowed, request.version());
  answer.set(http::field::content_type, "application/json");
  if (!is_get) answer.set(http::field::allow, "GET, HEAD");
  // One answer a connection: an idle one would keep one of the few places.
  answer.keep_alive(false);
  answer.content_length(state.size());
  if (request.method() != http::verb::head) answer.body() = state;
  return answer;
}

}  // namespace

struct HealthPort::State {
  State(tcp::acceptor bound, std::function<std::string()> asked, std::chrono::milliseconds most)
      : port(bound.local_endpoint().port()),
        listener(std::make_shared<store::Listener>(std::move(bound))),
        state(std::move(asked)),
        limit(most) {}

  std::uint16_t port;
  std::shared_ptr<store::Listener> listener;
  std::function<std::string()> state;
  std::chrono::milliseconds limit;
  int probes = 0;
  bool is_closed = false;

  // Answers one probe. `limit` holds for the request and the answer together.
  static asio::awaitable<void> serve(std::shared_ptr<State> self, tcp::socket socket) {
    beast::tcp_stream stream(std::move(socket));
    stream.expires_after(self->limit);
    beast::flat_buffer buffer(kMostHeaderBytes);
    Request request;
    request.header_limit(kMostHeaderBytes);
    const auto [failed, bytes] =
        co_await http::async_read_header(stream, buffer, request, kAsTuple);
    // After the end of the HealthPort `state` must not be called: what it looks at may be gone.
    if (!failed && !self->is_closed) {
      const auto answer = answer_to(request.get(), self->state());
      co_await http::async_write(stream, answer, kAsTuple);
      beast::error_code gone;
      stream.socket().shutdown(tcp::socket::shutdown_send, gone);
    }
    --self->probes;
  }
};

Result<std::unique_ptr<HealthPort>> HealthPort::open(asio::io_context& loop, std::uint16_t port,
                                                     std::function<std::string()> state,
                                                     std::chrono::milliseconds limit) {
  auto bound = store::bind_listener(loop, "::", port, kHealthPortVariable);
  // On a host without IPv6 bind_listener() takes IPv4 by itself. `::` may fail for other reasons.
  if (!bound)  // such as a stranger that listens there for IPv6 only
    bound = store::bind_listener(loop, "0.0.0.0", port, kHealthPortVariable);
  if (!bound) return bound.error();
  auto shared = std::make_shared<State>(std::move(*bound), std::move(state), limit);
  spawn(loop, "health port",
        store::Listener::run(shared->listener,
                             [&loop, weak = std::weak_ptr(shared)](tcp::socket socket) {
                               const auto alive = weak.lock();
                               if (!alive || alive->probes == kMostProbes) return;  // closes it
                               ++alive->probes;
                               spawn(loop, "probe", State::serve(alive, std::move(socket)));
                             }));
  return std::unique_ptr<HealthPort>(new HealthPort(std::move(shared)));
}

HealthPort::~HealthPort() {
  state_->is_closed = true;
  state_->listener->close();
}

std::uint16_t HealthPort::port() const { return state_->port; }

}  // namespace ddprun::agent
