// One listening port for two protocols. A static rendezvous has one address,
// MASTER_ADDR:MASTER_PORT, where workers expect the store and nodes the rendezvous. The first byte
// tells them apart: TCPStore clients open with 0x00 (VALIDATE, store/wire.h), gRPC with the 'P' of
// HTTP/2's "PRI * HTTP/2.0" (RFC 9113 section 3.4). It is peeked, not consumed, and the connection
// handed on. Loop's thread; owned by NodeServices.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>

#include "proto/loop.h"

namespace ddprun::agent {

// A connection that has not said a byte after this long is closed.
inline constexpr std::chrono::milliseconds kFirstByteLimit{10'000};
// Connections that have not said their first byte yet; for one more the oldest is closed. A job's
// nodes and workers speak first and at once, so only strangers grow old here.
inline constexpr std::size_t kUndecidedLimit = 1024;

struct DemultiplexerLimits {
  std::chrono::milliseconds first_byte = kFirstByteLimit;
  std::size_t undecided = kUndecidedLimit;
};

class PortDemultiplexer {
 public:
  struct Handlers {
    std::function<void(asio::ip::tcp::socket)> store;
    std::function<void(int fd)> rendezvous;  // `fd` is the receiver's to close
  };

  // Starts to listen and accept on `acceptor`, which is bound. Failure to listen is logged.
  PortDemultiplexer(asio::io_context& loop, asio::ip::tcp::acceptor acceptor, Handlers handlers,
                    DemultiplexerLimits limits = {});
  PortDemultiplexer(const PortDemultiplexer&) = delete;
  PortDemultiplexer& operator=(const PortDemultiplexer&) = delete;
  ~PortDemultiplexer();

  // Closes every connection that may be an old worker's: those that wait in the kernel and those
  // that were not handed on yet. A node's, which has said its first byte, stays. Call it when the
  // old workers are gone and before new ones start, together with the store's reset(). A handler
  // may be called from inside.
  void reset();

  // Connections that have not said their first byte yet.
  std::size_t undecided() const;

 private:
  struct State;  // outlives the PortDemultiplexer while its coroutines unwind

  std::shared_ptr<State> state_;
};

}  // namespace ddprun::agent
