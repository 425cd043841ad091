#include "agent/network/hosted_port.h"

#include <string>
#include <utility>
#include <vector>

namespace ddprun::agent {

using asio::ip::tcp;

rendezvous::TlsFiles files_of(const TlsPlan& plan) {
  return {.ca = plan.ca_file, .cert = plan.cert_file, .key = plan.key_file};
}

HostedPort::HostedPort(asio::io_context& loop, const RendezvousPlan& plan, Job job,
                       tcp::acceptor acceptor, ServeStore serve_store) {
  const bool has_tls = files_of(plan.tls).is_set();
  const rendezvous::ControlService::Options for_operators{
      .token = [token = job.token.key](
                   const std::string&) { return std::optional(rendezvous::HostToken{token}); },
      .jobs = [&control = job.control] { return std::vector{&control}; },
      .on_admitted = [this](const std::string& peer) { service_->admitted(peer); }};
  const tcp::endpoint here = acceptor.local_endpoint();
  local_operators_ = std::make_unique<rendezvous::LocalOperators>(loop, here.address().to_string(),
                                                                  here.port(), for_operators);
  operators_ = std::make_unique<rendezvous::ControlService>(loop, for_operators);
  service_ = std::make_unique<rendezvous::Service>(
      loop, job.host,
      rendezvous::ServiceOptions{
          .token = std::move(job.token),
          .rdzv_id = plan.run_id,
          .keep_alive = plan.keep_alive,
          .expected_nodes = plan.min_nodes,
          // The next leader waits so long (NodeServices::make_host()).
          .most_nodes =
              plan.kind == RendezvousPlan::Kind::kEtcd ? plan.max_nodes : rendezvous::kMaxMembers,
          .may_grant = std::move(job.may_grant),
          .resumes = plan.resumes,
          .tls = files_of(plan.tls),
          .tls_mixed = plan.tls.is_mixed,
          .more = [this](grpc::ServerBuilder& builder) { operators_->add_to(builder); }});
  std::function<void(int)> by_tls;
  if (has_tls) by_tls = [this](int fd) { service_->adopt_tls(fd); };
  // Only nodes that elect their leader ask whether it died.
  std::function<void(tcp::socket)> liveness;
  if (plan.kind == RendezvousPlan::Kind::kEtcd)
    liveness = [this](tcp::socket socket) { liveness_.hold(std::move(socket)); };
  demultiplexer_ = std::make_unique<rendezvous::PortDemultiplexer>(
      loop, std::move(acceptor),
      rendezvous::PortDemultiplexer::Handlers{.store = std::move(serve_store),
                                              .rendezvous = [this](int fd) { service_->adopt(fd); },
                                              .rendezvous_by_tls = std::move(by_tls),
                                              .liveness = std::move(liveness)});
}

// In this order: the demultiplexer's handlers use the service, which would wait for operators who
// wait for the job's end.
HostedPort::~HostedPort() {
  demultiplexer_.reset();
  local_operators_.reset();
  operators_->end();
  service_.reset();
}

}  // namespace ddprun::agent
