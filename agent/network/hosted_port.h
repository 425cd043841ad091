// Serves the port of an agent that hosts the rendezvous: nodes, operators and, with the static
// backend, the store. Operators of this host are served at a socket of their own, too. Loop's
// thread; owned by NodeServices.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>

#include "agent/core/config.h"
#include "agent/network/liveness_holder.h"
#include "base/loop.h"
#include "rendezvous/control/control_service.h"
#include "rendezvous/control/job_control.h"
#include "rendezvous/control/local_operators.h"
#include "rendezvous/grpc/port_demultiplexer.h"
#include "rendezvous/grpc/service.h"
#include "rendezvous/host/host.h"

namespace ddprun::agent {

rendezvous::TlsFiles files_of(const TlsPlan& plan);

class HostedPort {
 public:
  struct Job {
    rendezvous::Host& host;
    rendezvous::JobControl& control;
    rendezvous::HostToken token;
    std::function<bool()> may_grant{};  // as in ServiceOptions
  };
  using ServeStore = std::function<void(asio::ip::tcp::socket)>;

  // `plan` and `job` must outlive it. `serve_store` gets the connections of store clients.
  HostedPort(asio::io_context& loop, const RendezvousPlan& plan, Job job,
             asio::ip::tcp::acceptor acceptor, ServeStore serve_store);
  HostedPort(const HostedPort&) = delete;
  HostedPort& operator=(const HostedPort&) = delete;
  ~HostedPort();

  // As PortDemultiplexer::reset().
  void reset() { demultiplexer_->reset(); }

 private:
  std::unique_ptr<rendezvous::LocalOperators> local_operators_;
  std::unique_ptr<rendezvous::ControlService> operators_;
  std::unique_ptr<rendezvous::Service> service_;
  LivenessHolder liveness_;
  std::unique_ptr<rendezvous::PortDemultiplexer> demultiplexer_;
};

}  // namespace ddprun::agent
