#include "agent/front.h"

#include <sys/socket.h>

#include <array>
#include <utility>

namespace ddprun::agent {

using asio::ip::tcp;
using namespace asio::experimental::awaitable_operators;  // NOLINT(google-build-using-namespace):
                                                          // operator||

// Shared by the Front and its coroutines: whichever ends last frees it.
struct Front::State {
  State(asio::io_context& its_loop, tcp::acceptor its_acceptor, Handlers its_handlers)
      : loop(its_loop), acceptor(std::move(its_acceptor)), handlers(std::move(its_handlers)) {}

  asio::io_context& loop;
  tcp::acceptor acceptor;
  Handlers handlers;
  std::size_t undecided = 0;
  bool closed = false;
};

namespace {

constexpr char kStoreFirstByte = 0;
constexpr char kHttp2FirstByte = 'P';

}  // namespace

// Coroutines that need State, which is private to Front.
struct FrontTasks {
  template <typename State>
  static asio::awaitable<void> sort_out(std::shared_ptr<State> state, tcp::socket socket) {
    asio::steady_timer timer(state->loop);
    co_await (socket.async_wait(tcp::socket::wait_read, kAsTuple) ||
              expires(timer, kFirstByteLimit));
    --state->undecided;
    if (state->closed) co_return;
    std::array<char, 1> first{};
    if (::recv(socket.native_handle(), first.data(), first.size(), MSG_PEEK | MSG_DONTWAIT) != 1)
      co_return;
    if (first[0] == kStoreFirstByte) {
      state->handlers.store(std::move(socket));
    } else if (first[0] == kHttp2FirstByte && state->handlers.rendezvous) {
      boost::system::error_code failed;
      const int fd = socket.release(failed);
      if (!failed) state->handlers.rendezvous(fd);
    }
  }

  template <typename State>
  static asio::awaitable<void> accept_all(std::shared_ptr<State> state) {
    while (!state->closed) {
      auto [failed, socket] = co_await state->acceptor.async_accept(kAsTuple);
      if (state->closed) co_return;
      if (failed) {
        // Out of descriptors or a connection that died in the queue: the next one may be well. A
        // short pause keeps a lasting shortage from spinning.
        asio::steady_timer pause(state->loop);
        co_await expires(pause, std::chrono::milliseconds(10));
        continue;
      }
      if (state->undecided >= kUndecidedLimit) continue;  // closes `socket`
      ++state->undecided;
      spawn(state->loop, "front connection", sort_out(state, std::move(socket)));
    }
  }
};

Front::Front(asio::io_context& loop, tcp::acceptor acceptor, Handlers handlers)
    : state_(std::make_shared<State>(loop, std::move(acceptor), std::move(handlers))) {
  state_->acceptor.listen(tcp::acceptor::max_listen_connections);
  spawn(loop, "front", FrontTasks::accept_all(state_));
}

Front::~Front() {
  state_->closed = true;
  boost::system::error_code ignored;
  state_->acceptor.close(ignored);
}

}  // namespace ddprun::agent
