// A store server on a loop with a thread of its own. Raw peers send whatever bytes a test wants.
// Every wait has a deadline. A test uses these on its own thread; on_loop() runs a function on the
// loop's thread.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "store/client.h"
#include "store/server.h"
#include "tests/store/hex.h"

namespace ddprun::store {

// No test waits longer than this for anything that should happen.
inline constexpr std::chrono::seconds kPatience{60};

class ServedStore {
 public:
  explicit ServedStore(StoreLimits limits = {}) : server_(std::make_unique<Server>(loop_, limits)) {
    auto acceptor = bind_listener(loop_, "127.0.0.1", 0).value();
    port_ = acceptor.local_endpoint().port();
    server_->serve(std::move(acceptor));
    thread_ = std::thread([this] { loop_.run(); });
  }
  ServedStore(const ServedStore&) = delete;
  ServedStore& operator=(const ServedStore&) = delete;
  ServedStore(ServedStore&&) = delete;
  ServedStore& operator=(ServedStore&&) = delete;
  ~ServedStore() {
    on_loop([this] { server_.reset(); });
    work_.reset();
    thread_.join();  // the loop runs dry: nothing of the server is left on it
  }

  // Runs `task` on the loop's thread, waits for it and returns its result.
  template <typename Task>
  auto on_loop(Task task) -> decltype(task()) {
    std::packaged_task<decltype(task())()> packaged(std::move(task));
    auto done = packaged.get_future();
    asio::post(loop_, [&packaged] { packaged(); });
    if (done.wait_for(kPatience) != std::future_status::ready) {
      ADD_FAILURE() << "the loop is stuck";
      std::abort();  // `packaged` must not die under the loop
    }
    return done.get();
  }

  // Asks `condition` on the loop's thread, again and again, until it holds.
  testing::AssertionResult eventually(const std::function<bool(const Server&)>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (std::chrono::steady_clock::now() < deadline) {
      if (on_loop([&] { return condition(*server_); })) return testing::AssertionSuccess();
      std::this_thread::yield();
    }
    return testing::AssertionFailure() << "did not happen in time";
  }

  Client client(Client::Duration limit = kPatience) {
    auto connected = Client::connect("127.0.0.1", port_, limit);
    EXPECT_TRUE(connected.has_value()) << connected.error().message();
    return std::move(*connected);
  }

  // Two round trips of another client. After them the loop has looked at everything that was sent
  // before.
  void let_the_server_read() {
    Client other = client();
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(other.ping().has_value());
  }

  Server& server() { return *server_; }
  void destroy_server() { server_.reset(); }  // on the loop only
  asio::io_context& loop() { return loop_; }
  std::uint16_t port() const { return port_; }

 private:
  asio::io_context loop_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_ = asio::make_work_guard(loop_);
  std::unique_ptr<Server> server_;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

// A connection that sends and expects bytes as they are.
class RawPeer {
 public:
  explicit RawPeer(std::uint16_t port) : socket_(*loop_) {
    socket_.connect({asio::ip::make_address("127.0.0.1"), port});
    limit_waiting();
  }
  explicit RawPeer(asio::ip::tcp::acceptor& acceptor) : socket_(*loop_) {
    acceptor.accept(socket_);
    limit_waiting();
  }

  // Connected, and has sent VALIDATE, which a server expects first.
  static RawPeer greeted(std::uint16_t port) {
    RawPeer peer(port);
    peer.send(unhex("00 cef7853c"));
    return peer;
  }

  // Ignores an error: if the server has closed, read() and is_closed() show it.
  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent =
          ::send(socket_.native_handle(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }

  // Reads `size` bytes. Fewer if the server closes, or if nothing comes for kPatience.
  std::string read(std::size_t size) {
    std::string bytes(size, '\0');
    std::size_t have = 0;
    while (have < size) {
      const ssize_t received = ::recv(socket_.native_handle(), bytes.data() + have, size - have, 0);
      if (received <= 0) break;
      have += static_cast<std::size_t>(received);
    }
    bytes.resize(have);
    return bytes;
  }

  // Returns whether the server has closed the connection and no byte is left to read. Waits, at
  // most for kPatience, until the server closes or a byte comes.
  bool is_closed() {
    char byte = 0;
    const ssize_t received = ::recv(socket_.native_handle(), &byte, 1, 0);
    return received == 0 || (received < 0 && (errno == ECONNRESET || errno == EPIPE));
  }

  // A round trip. If it succeeds, the server has applied everything that was sent before.
  bool answers_ping() {
    send(unhex("0d 11223344"));
    return read(4) == unhex("11223344");
  }

  void half_close() { socket_.shutdown(asio::socket_base::shutdown_send); }
  asio::ip::tcp::socket& socket() { return socket_; }

 private:
  void limit_waiting() {
    timeval patience{};
    patience.tv_sec = kPatience.count();
    ::setsockopt(socket_.native_handle(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    ::setsockopt(socket_.native_handle(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    socket_.set_option(asio::ip::tcp::no_delay(true));
  }

  std::unique_ptr<asio::io_context> loop_ = std::make_unique<asio::io_context>();
  asio::ip::tcp::socket socket_;
};

// The bytes of one request.
inline std::string request(Op op, const std::vector<std::string>& fields, std::int64_t number = 0) {
  const std::vector<std::string_view> views(fields.begin(), fields.end());
  std::string bytes;
  encode({op, number, views}, bytes);
  return bytes;
}

}  // namespace ddprun::store
