// A listening TCP socket: binds it with errors that a user can act on, and accepts in batches. It
// knows nothing of the protocol. Runs on the loop's thread. Every descriptor made here is
// close-on-exec: the process forks workers, and a worker that inherits a connection keeps it open.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace ddprun {

namespace asio = boost::asio;

// Connections that may wait in the kernel to be accepted: SOMAXCONN, which is 4,096 with glibc. The
// kernel cuts it to net.core.somaxconn (listen(2)), and it lets one more in than it was told.
inline constexpr int kQueueLimit = asio::socket_base::max_listen_connections;
inline constexpr int kMostQueued = kQueueLimit + 1;
// The flag with which a user chooses the port.
inline constexpr std::string_view kPortFlag = "--master-port";

// Binds `numeric_address` (IPv4 or IPv6, never a name) and `port` (0: the kernel picks one) and
// listens. So a taken port shows here, and connections made from now on wait in the kernel. The
// address `::` takes IPv4 peers too. Errors name the address, the port and what to do with
// `setting`, the flag that chose the port. They are kInvalidArgument (not an address), kUnavailable
// (taken), kSystem (not an address of this machine, not allowed).
Result<asio::ip::tcp::acceptor> bind_listener(asio::io_context& loop,
                                              const std::string& numeric_address,
                                              std::uint16_t port,
                                              std::string_view setting = kPortFlag);

// Makes `socket` non-blocking and close-on-exec, and turns Nagle's delay off. Every store
// connection is so. False if the connection is dead; drop it.
bool prepare(asio::ip::tcp::socket& socket);

class Listener {
 public:
  using Taker = std::function<void(asio::ip::tcp::socket)>;

  // Owns `bound`, which must be bound and may listen already.
  explicit Listener(asio::ip::tcp::acceptor bound);

  // Accepts until close() and hands each connection, prepared, to `take`. `self` keeps the listener
  // alive. If descriptors or memory run out, it warns once and rests until resume(), or for some
  // seconds.
  static asio::awaitable<void> run(std::shared_ptr<Listener> self, Taker take);

  // Starts listening, or lengthens the queue of a socket that listens already. Call it before
  // run(). Errors: as bind_listener().
  Result<void> listen();

  // Accepts what waits in the queue now and hands it to `take`, as run() does. Stops after
  // kMostQueued connections, so that it ends even if new ones keep coming.
  void take_queue(const Taker& take);
  // As take_queue(), but closes the connections.
  void drop_queue();

  // Tells a run() that rests that descriptors came free. Else it does nothing.
  void resume();

  // Ends run() and closes the socket. May be called again.
  void close();

 private:
  enum class Batch { kDone, kExhausted };  // kExhausted: out of descriptors or memory

  Batch accept_batch(int most, const Taker& take);
  void tell_exhausted();
  int accept_one();

  asio::ip::tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  asio::ip::tcp protocol_ = asio::ip::tcp::v4();  // IPv4 or IPv6, as bound
  bool exhausted_logged_ = false;
};

}  // namespace ddprun
