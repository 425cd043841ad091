#include "base/net/listener.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <cerrno>
#include <chrono>
#include <utility>

#include "base/limit_hint.h"
#include "base/log.h"
#include "base/loop.h"

namespace ddprun {
namespace {

using asio::ip::tcp;
using boost::system::error_code;

// Connections accepted in one turn of the loop, before other work gets its turn. A storm of 4,000
// clients is 32 turns.
constexpr int kAcceptBatch = 128;
// How long accepting rests when descriptors or memory ran out. If one of our connections ends,
// resume() ends the rest. But nobody tells us when another part of the process, or another process,
// gives some back.
constexpr std::chrono::seconds kExhaustedPause{5};

// Turns a failure into words that say what the user can do.
Error bind_error(const std::string& address, std::uint16_t port, const error_code& failure,
                 std::string_view setting = kPortFlag) {
  const auto error = [&](ErrorCode code, std::string_view what) {
    return Error(code, fmt::format("port {} on {}: {}", port, address, what));
  };
  if (failure == asio::error::address_in_use)
    return error(ErrorCode::kUnavailable,
                 fmt::format("address already in use; choose another {} or stop the program that "
                             "listens there",
                             setting));
  if (failure.value() == EADDRNOTAVAIL)
    return error(ErrorCode::kSystem, "no interface of this host has that address");
  if (failure == asio::error::access_denied)
    return error(ErrorCode::kSystem,
                 fmt::format("permission denied; choose a {} of 1024 or more", setting));
  return error(ErrorCode::kSystem, describe_errno(failure.value()));
}

error_code open_and_bind(tcp::acceptor& acceptor, const tcp::endpoint& endpoint) {
  error_code failure;
  acceptor.open(endpoint.protocol(), failure);
  if (failure) return failure;
  // Asio cannot open a socket with SOCK_CLOEXEC. No fork can come in between: workers are forked on
  // this thread.
  if (::fcntl(acceptor.native_handle(), F_SETFD, FD_CLOEXEC) != 0)
    return {errno, boost::system::system_category()};
  // Connections of an earlier run in TIME_WAIT must not keep the port. A second listener is refused
  // even so.
  acceptor.set_option(tcp::acceptor::reuse_address(true), failure);
  if (failure) return failure;
  // Said here, because the default is a setting of the machine (net.ipv6.bindv6only).
  if (endpoint.address().is_v6()) acceptor.set_option(asio::ip::v6_only(false), failure);
  if (failure) return failure;
  acceptor.bind(endpoint, failure);
  if (failure) return failure;
  acceptor.listen(kQueueLimit, failure);
  return failure;
}

// Errors of accept(2) after which the connection still waits in the queue.
bool is_exhausted(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

Result<tcp::acceptor> bind_listener(asio::io_context& loop, const std::string& numeric_address,
                                    std::uint16_t port, std::string_view setting) {
  error_code failure;
  const auto address = asio::ip::make_address(numeric_address, failure);
  if (failure)
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("\"{}\" is not a numeric IP address to listen on", numeric_address));
  tcp::acceptor acceptor(loop);
  failure = open_and_bind(acceptor, {address, port});
  // A host without IPv6 (ipv6.disable=1) has no `::`. All its addresses are those of IPv4.
  if (failure == asio::error::address_family_not_supported && address.is_unspecified())
    failure = open_and_bind(acceptor, {asio::ip::address_v4::any(), port});
  if (failure) return bind_error(numeric_address, port, failure, setting);
  return acceptor;
}

bool prepare(tcp::socket& socket) {
  error_code failure;
  socket.set_option(tcp::no_delay(true), failure);
  if (!failure) socket.non_blocking(true, failure);
  return !failure && ::fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC) == 0;
}

Listener::Listener(tcp::acceptor bound)
    : acceptor_(std::move(bound)), pause_(acceptor_.get_executor()) {
  error_code ignored;
  // Both fail on a closed socket only, and listen() reports that.
  acceptor_.non_blocking(true, ignored);
  protocol_ = acceptor_.local_endpoint(ignored).protocol();
}

Result<void> Listener::listen() {
  error_code failure;
  acceptor_.listen(kQueueLimit, failure);
  if (!failure) return {};
  error_code unknown;
  const auto bound = acceptor_.local_endpoint(unknown);
  return bind_error(bound.address().to_string(), bound.port(), failure);
}

asio::awaitable<void> Listener::run(std::shared_ptr<Listener> self, Taker take) {
  while (self->acceptor_.is_open()) {
    const auto [failure] = co_await self->acceptor_.async_wait(tcp::acceptor::wait_read, kAsTuple);
    if (failure || !self->acceptor_.is_open()) co_return;
    if (self->accept_batch(kAcceptBatch, take) == Batch::kDone) continue;
    // The queue is not empty, so the socket stays readable: without a rest the loop would spin.
    self->tell_exhausted();
    co_await expires(self->pause_, kExhaustedPause);
  }
}

// Looks at is_open() each time, because `take` may close this listener.
Listener::Batch Listener::accept_batch(int most, const Taker& take) {
  for (int i = 0; i < most && acceptor_.is_open(); ++i) {
    const int descriptor = accept_one();
    if (descriptor < 0) return is_exhausted(errno) ? Batch::kExhausted : Batch::kDone;
    tcp::socket socket(acceptor_.get_executor());
    error_code failure;
    socket.assign(protocol_, descriptor, failure);
    if (failure) {
      ::close(descriptor);
    } else if (prepare(socket)) {
      take(std::move(socket));
    }
  }
  return Batch::kDone;
}

// Returns a descriptor, or -1 with errno: EAGAIN if the queue is empty. Connections that died in
// the queue are skipped.
int Listener::accept_one() {
  for (;;) {
    const int descriptor =
        ::accept4(acceptor_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (descriptor >= 0 || (errno != ECONNABORTED && errno != EINTR)) return descriptor;
  }
}

// Once for each listener: the shortage may last, and the log must not fill up.
void Listener::tell_exhausted() {
  if (!exhausted_logged_)
    log::warning(
        "cannot accept connections: out of file descriptors or memory; going on when there are "
        "some");
  exhausted_logged_ = true;
}

void Listener::take_queue(const Taker& take) {
  if (accept_batch(kMostQueued, take) == Batch::kExhausted) tell_exhausted();
}

void Listener::drop_queue() {
  take_queue([](const tcp::socket&) {});
}

void Listener::resume() { pause_.cancel(); }

void Listener::close() {
  error_code ignored;
  acceptor_.close(ignored);
  pause_.cancel();
}

}  // namespace ddprun
