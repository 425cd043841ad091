// Serves the operators of this host at a socket of its own (local_socket.h), without a token. The
// kernel says that they are of the same user, or root. It has a gRPC server of its own, so nothing
// that came over the network is ever taken for local. The server starts with the first operator.
// Loop's thread; owned by Daemon or HostedPort.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "rendezvous/control/control_service.h"

namespace grpc {
class Server;
}

namespace ddprun::rendezvous {

class LocalOperators {
 public:
  // For the rendezvous that listens at this numeric address and port. `options`: is_local is set
  // here. If no socket can be had, it serves nobody, and a warning says so. `loop` must outlive it.
  LocalOperators(boost::asio::io_context& loop, const std::string& address, std::uint16_t port,
                 ControlService::Options options);
  LocalOperators(const LocalOperators&) = delete;
  LocalOperators& operator=(const LocalOperators&) = delete;
  ~LocalOperators();

  // As in ControlService.
  void let_go() { service_.let_go(); }
  // Answers no more, and waits until gRPC has told so those who wait, for a moment at most.
  void end();

 private:
  void accept();
  void accept_later();
  void serve(int fd);

  boost::asio::local::stream_protocol::acceptor acceptor_;
  boost::asio::steady_timer pause_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // until end()
  ControlService service_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace ddprun::rendezvous
