// Serves a store on 127.0.0.1 for test scripts. Prints its port. Each line on stdin is an order,
// answered by a line when done. Orders are `reset`, `keys` (how many), `await N` (until N keys are
// waited for). Ends when stdin does.
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/this_coro.hpp>
#include <cstdio>
#include <string>

#include "base/loop.h"
#include "store/server.h"

namespace {

namespace asio = boost::asio;
using ddprun::store::Server;

std::string obey(Server& server, const std::string& order) {
  if (order == "keys") return std::to_string(server.keys());
  if (order != "reset") return "unknown order";
  server.reset();
  return "ok";
}

// The server tells nobody when somebody waits, so the test program looks, every 2 ms.
asio::awaitable<void> await_waiters(Server& server, std::size_t count) {
  asio::steady_timer pause(co_await asio::this_coro::executor);
  while (server.waiters() != count) co_await ddprun::expires(pause, std::chrono::milliseconds(2));
}

asio::awaitable<void> take_orders(Server& server, asio::posix::stream_descriptor& input) {
  std::string line;
  for (;;) {
    const auto [failure, size] =
        co_await asio::async_read_until(input, asio::dynamic_buffer(line), '\n', ddprun::kAsTuple);
    if (failure) break;
    const std::string order = line.substr(0, size - 1);
    if (order.starts_with("await ")) {
      co_await await_waiters(server, std::stoul(order.substr(6)));
      std::puts("ok");
    } else {
      std::puts(obey(server, order).c_str());
    }
    std::fflush(stdout);
    line.erase(0, size);
  }
  server.close();
}

}  // namespace

int main(int argc, char** argv) {
  asio::io_context loop{1};
  const auto port = argc > 1 ? static_cast<std::uint16_t>(std::stoi(argv[1])) : std::uint16_t{0};
  auto acceptor = ddprun::bind_listener(loop, "127.0.0.1", port);
  if (acceptor.has_error()) {
    std::fprintf(stderr, "%s\n", acceptor.error().message().c_str());
    return 1;
  }
  std::printf("%d\n", acceptor->local_endpoint().port());
  std::fflush(stdout);
  Server server(loop);
  server.serve(std::move(*acceptor));
  asio::posix::stream_descriptor input(loop, 0);
  ddprun::spawn(loop, "orders", take_orders(server, input));
  loop.run();
  return 0;
}
