// One listening port for several protocols. A static rendezvous has only one address,
// MASTER_ADDR:MASTER_PORT: workers expect the store there, and nodes the rendezvous. The first byte
// of a connection tells which it is. A TCPStore client begins with 0x00 (VALIDATE, store/wire.h).
// gRPC begins with the 'P' of HTTP/2's "PRI * HTTP/2.0" (RFC 9113, section 3.4). With TLS it begins
// with the 0x16 of a handshake record (RFC 8446, section 5.1). A node that an agent leads opens one
// more connection, with a byte of its own (rendezvous/grpc/liveness.h). This class looks at the
// byte without consuming it, and hands the connection on. It speaks neither protocol. Loop's
// thread; owned by NodeServices.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>

#include "base/loop.h"
#include "rendezvous/core/rendezvous.h"

namespace ddprun::rendezvous {

// A connection that has sent no byte for this long is closed.
inline constexpr std::chrono::milliseconds kFirstByteLimit{10'000};
// The most connections that may be undecided: those that have sent no byte yet. If one more comes,
// the oldest is closed. A job's nodes and workers send their first byte at once. So the oldest are
// unauthenticated peers' (a port scanner, a health check). All nodes of the largest job may come at
// once.
inline constexpr std::size_t kUndecidedLimit = kMaxMembers;

struct DemultiplexerLimits {
  std::chrono::milliseconds first_byte = kFirstByteLimit;
  std::size_t undecided = kUndecidedLimit;
};

class PortDemultiplexer {
 public:
  // They get connections of which no byte has been read.
  struct Handlers {
    std::function<void(asio::ip::tcp::socket)> store;
    // They own `fd` from then on. If it is null, such a peer is refused, with a TLS alert if it
    // began TLS.
    std::function<void(int fd)> rendezvous;
    std::function<void(int fd)> rendezvous_by_tls{};
    // If it is null, such a connection is closed.
    std::function<void(asio::ip::tcp::socket)> liveness{};
  };

  // Listens and accepts on `acceptor`, which must be bound, until its own end. If listening fails,
  // an error is logged. `loop` must outlive this.
  PortDemultiplexer(asio::io_context& loop, asio::ip::tcp::acceptor acceptor, Handlers handlers,
                    DemultiplexerLimits limits = {});
  PortDemultiplexer(const PortDemultiplexer&) = delete;
  PortDemultiplexer& operator=(const PortDemultiplexer&) = delete;
  ~PortDemultiplexer();

  // Closes every connection that may be an old worker's. They are those that wait in the kernel's
  // queue, and those that are undecided. A connection stays if its first byte says that it is a
  // node's. A node that has sent no byte yet is closed too; its client tries again. Call it when
  // the old workers are gone and before new ones start, together with the store's reset(). It may
  // call the rendezvous handler.
  void reset();

  // The number of connections that were not handed on or closed yet.
  std::size_t undecided() const;

 private:
  struct State;  // lives until the last wait has ended, maybe longer than PortDemultiplexer

  std::shared_ptr<State> state_;
};

}  // namespace ddprun::rendezvous
