// Serves one Table over TCP to TCPStore clients, with one coroutine per connection on the caller's
// loop. The answers of one readable event leave in one send. A slow or silent client delays nobody
// else. Nothing here looks up a name. A client that does not send VALIDATE in time is dropped.
// Connections leave descriptors for the rest of the process (base/net/descriptors.h). The protocol
// has no authentication, so listen on an address that only the job can reach. Call all members on
// the loop's thread. The loop must outlive the server. The server may be destroyed at any time.
// Coroutines that are still suspended end by themselves, at the latest when the loop is destroyed.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <functional>
#include <memory>

#include "base/net/listener.h"
#include "store/limits.h"

namespace ddprun::store {

namespace asio = boost::asio;

class Server {
 public:
  // Says of a connection, a file descriptor, whether it is served. It is closed otherwise, unread.
  using Admits = std::function<bool(int fd)>;

  // Without `admits` all are served.
  explicit Server(asio::io_context& loop, StoreLimits limits = {}, Admits admits = {});
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  Server(Server&&) = delete;
  Server& operator=(Server&&) = delete;
  ~Server();

  // Accepts clients from `bound_acceptor` until close(). It must be bound and may listen already.
  // May be called again for further addresses: all reach the same table. If listening fails, an
  // error is logged. Must not be called after close() (asserted).
  void serve(asio::ip::tcp::acceptor bound_acceptor);

  // Serves a connection that somebody else accepted. Nothing may have been read from it: the first
  // byte is part of VALIDATE.
  void adopt(asio::ip::tcp::socket connected);

  // Drops all connections, all keys, and the connections that still wait in the listeners' queues.
  // So the next attempt finds an empty store, and no byte of an old worker reaches it. Call it when
  // the old workers are gone and before new ones start. The listeners stay.
  void reset();

  // As reset(), but closes the listeners too. May be called again.
  void close();

  // Open connections, also those that have not sent VALIDATE yet.
  std::size_t connections() const;
  // Keys of the map; `init/`, in which PyTorch's clients count themselves, is one of them.
  std::size_t keys() const;
  // As Table::stored_bytes().
  std::size_t stored_bytes() const;
  // Pending (key, waiter) pairs.
  std::size_t waiters() const;

 private:
  class Core;
  // Two owners: the server, and each coroutine that is still suspended.
  std::shared_ptr<Core> core_;
};

}  // namespace ddprun::store
