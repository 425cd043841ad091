// Serves one Table over TCP to TCPStore clients: one coroutine per connection on the caller's loop.
// Answers of one readable event leave in one send; a slow or silent client delays nobody else;
// nothing here ever resolves a name. Who does not say VALIDATE in time is dropped, and connections
// leave descriptors for the rest of the process (store/descriptors.h). No authentication: the
// protocol has none, so listen on an address that only the job can reach. All members are called on
// the loop's thread; the loop must outlive the server. The server may be destroyed at any time:
// coroutines that are still suspended end by themselves, at the latest when the loop is destroyed.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <memory>

#include "store/limits.h"
#include "store/listener.h"

namespace ddprun::store {

namespace asio = boost::asio;

class Server {
 public:
  explicit Server(asio::io_context& loop, Limits limits = {});
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  Server(Server&&) = delete;
  Server& operator=(Server&&) = delete;
  ~Server();

  // Accepts clients from `bound_acceptor`, which is bound and perhaps not yet listening, until
  // close(). May be called again for further addresses: all of them reach the same table. Failure
  // to listen is logged; after close() it is asserted against.
  void serve(asio::ip::tcp::acceptor bound_acceptor);

  // Serves a connection that was accepted elsewhere; nothing may have been read from it.
  void adopt(asio::ip::tcp::socket connected);

  // Drops all connections and all state, and the connections that still wait in the listeners'
  // queues: the next attempt finds an empty store and no byte of an old worker reaches it. Call it
  // when the old workers are gone and before new ones start. Listeners stay.
  void reset();

  // As reset(), and closes the listeners. May be called again.
  void close();

  std::size_t connections() const;
  // Keys of the map, `init/` included.
  std::size_t keys() const;
  // Pending (key, waiter) pairs.
  std::size_t waiters() const;

 private:
  class Core;
  std::shared_ptr<Core> core_;  // two owners: the server and each coroutine that is still suspended
};

}  // namespace ddprun::store
