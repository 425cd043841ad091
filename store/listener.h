// A listening TCP socket: binds it with errors that a user can act on, and accepts in batches.
// Knows nothing of the protocol. Runs on the loop's thread. Every descriptor made here is
// close-on-exec: workers are forked beside it.
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

#include "proto/result.h"

namespace ddprun::store {

namespace asio = boost::asio;

// Connections that may wait to be accepted: as many as the host allows (net.core.somaxconn cuts
// it). The kernel lets one more in than it was told.
inline constexpr int kQueueLimit = asio::socket_base::max_listen_connections;
inline constexpr int kMostQueued = kQueueLimit + 1;
// What a user chooses the port with.
inline constexpr std::string_view kPortFlag = "--master-port";

// Binds `numeric_address` (IPv4 or IPv6, never a name) and `port` (0: the kernel picks) and
// listens, so that a taken port shows here and connections made from now on wait in the kernel. An
// IPv6 address takes IPv4 peers too where it is `::`. Errors name address, port and what to do with
// the `setting` that chose the port:
// kInvalidArgument (not an address), kUnavailable (taken, or not of this host), kSystem.
Result<asio::ip::tcp::acceptor> bind_listener(asio::io_context& loop,
                                              const std::string& numeric_address,
                                              std::uint16_t port,
                                              std::string_view setting = kPortFlag);

// Marks `socket` non-blocking, close-on-exec and without Nagle's delay, as every store connection
// is. False: it is dead already.
bool prepare(asio::ip::tcp::socket& socket);

class Listener {
 public:
  using Taker = std::function<void(asio::ip::tcp::socket)>;

  explicit Listener(asio::ip::tcp::acceptor bound);

  // Accepts until close() and hands each connection, prepared, to `take`. `self` keeps the listener
  // alive. Where descriptors or memory run out it says so once and rests until resume(), or for
  // some seconds.
  static asio::awaitable<void> run(std::shared_ptr<Listener> self, Taker take);

  // Starts listening (again), with the longest queue the host allows. Empty on success, else what
  // failed.
  Result<void> listen();

  // Accepts what waits in the queue now and hands it to `take`, as run() does. Ends
  // however many connect meanwhile: after kMostQueued.
  void take_queue(const Taker& take);
  // As take_queue(), and closes them.
  void drop_queue();

  // Descriptors came free: ends the rest of run(), if it rests.
  void resume();

  // Ends run(). May be called again.
  void close();

 private:
  enum class Batch { kDone, kExhausted };  // kExhausted: out of descriptors or memory

  Batch accept_batch(int most, const Taker& take);
  void tell_exhausted();
  int accept_one();

  asio::ip::tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  asio::ip::tcp protocol_ = asio::ip::tcp::v4();
  bool exhausted_told_ = false;
};

}  // namespace ddprun::store
