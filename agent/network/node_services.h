// This node's place in the rendezvous, and the store that it may serve. It decides from the plan
// which node hosts, binds the ports, and opens one Session. It decides nothing about rounds: the
// Host does. There are four shapes:
//   alone    the Host is in this process; only the store listens, on a port of its own
//   host     Host and HostedPort are in this process; the agents of the other nodes
//            connect to the endpoint's port
//   remote   this process is a gRPC client of the host
//   elected  host or remote, as the election in etcd has it, and in turn (elected_session.h)
// Loop's thread; owned by Agent, which it must not outlive.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/core/config.h"
#include "agent/network/hosted_port.h"
#include "base/loop.h"
#include "rendezvous/control/job_control.h"
#include "rendezvous/core/rendezvous.h"
#include "rendezvous/failover/elected_session.h"
#include "rendezvous/host/host.h"
#include "store/server.h"

namespace ddprun::agent {

// The address at which this node serves the store of the next round, if it gets node rank 0.
struct StoreAddress {
  std::string host;  // numeric; with the static backend as the user gave it
  std::uint16_t port = 0;
  std::uint16_t worker_port =
      0;  // was free: the worker with rank 0 serves there; 0: this node does
};

class NodeServices {
 public:
  // `admits` says who may use the store.
  using Admits = store::Server::Admits;
  // `workers_until` is called when the end of the lease moves: the workers may live until then,
  // unless more is heard. A node that hosts for good has no lease.
  using WorkersUntil = std::function<void(rendezvous::Time)>;
  NodeServices(asio::io_context& loop, RendezvousPlan plan, Admits admits = {},
               WorkersUntil workers_until = {});
  NodeServices(const NodeServices&) = delete;
  NodeServices& operator=(const NodeServices&) = delete;
  ~NodeServices();

  // Call once. Looks up the endpoint, then hosts the rendezvous or starts to connect to it. After
  // that call session().join(); `handler` gets the messages of the host. Errors: kNotFound, the
  // endpoint's name stayed unknown; otherwise as bind_listener(), which name the port.
  asio::awaitable<Result<void>> open(rendezvous::Session::MessageHandler handler);

  bool is_open() const { return session_ != nullptr; }
  // This node's session with the rendezvous. Call only when is_open().
  rendezvous::Session& session() { return *session_; }
  const rendezvous::Session& session() const { return *session_; }
  // Returns why this node reaches no host, or cannot be one.
  rendezvous::UnreachedHost unreached() const;

  // Null if the rendezvous is in another process.
  const rendezvous::Host* host() const { return host_.get(); }
  // The job as operators see it; null in the same case.
  const rendezvous::JobControl* control() const { return control_.get(); }
  const store::Server& store() const { return *store_; }

  // The network interface that faces the rendezvous. Empty if all nodes may be on this host. The
  // workers must use it for their own traffic. Otherwise Gloo takes the address that the host's
  // name resolves to, and on many hosts that is loopback.
  const std::string& interface_towards_peers() const { return interface_; }

  // Closes the store of the last round and binds a port for the next one. So no key, connection or
  // late byte of an old attempt can reach a new one. Call it before each join(), which needs the
  // address. With the static backend the port stays; the store is emptied when the round closes.
  Result<StoreAddress> prepare_store();
  // Serves the store that was prepared. Call it when this node has node rank 0, before its workers
  // start.
  void serve_store();

 private:
  asio::awaitable<Result<asio::ip::address>> find_endpoint();
  void set_address_for(const asio::ip::address& endpoint);
  asio::awaitable<Result<void>> open_c10d(rendezvous::Session::MessageHandler handler);
  asio::awaitable<Result<void>> open_static(rendezvous::Session::MessageHandler handler);
  asio::awaitable<Result<void>> open_etcd(rendezvous::Session::MessageHandler handler);
  // Daemons lead, and the agents follow.
  bool follows_daemons() const { return !plan_.etcd.daemons.empty(); }
  rendezvous::ElectedSession::Callbacks callbacks();
  Result<rendezvous::Leader> own_address();
  void stop_leading();
  std::optional<Error> not_the_first_host(const asio::ip::address& endpoint) const;
  Result<asio::ip::tcp::acceptor> bind_rendezvous(const asio::ip::address& endpoint);
  void make_host(rendezvous::JobRecord record);
  void host_here(rendezvous::Session::MessageHandler handler, const std::string& seen_at);
  std::string address_to_bind(const asio::ip::address& endpoint) const;
  void open_port(asio::ip::tcp::acceptor acceptor, bool with_store,
                 std::function<bool()> may_grant = {});
  void open_remote_session(rendezvous::Session::MessageHandler handler);

  asio::io_context& loop_;
  RendezvousPlan plan_;
  const std::string key_;   // of the token
  std::string store_host_;  // numeric; this node's store listens here, and peers reach it here
  std::string interface_;
  // Numeric; all addresses of the endpoint. Its name is looked up once only.
  std::vector<std::string> endpoint_addresses_;
  // The endpoint's name has several addresses of this host, and a peer may know any of them. Or
  // this host's hosts file maps it to loopback.
  bool listens_everywhere_ = false;
  // Static, node rank 0 only: the store shares the endpoint's port.
  std::optional<StoreAddress> fixed_store_;
  std::optional<asio::ip::tcp::acceptor> prepared_;  // the bound port of the next round's store
  // etcd: where the rendezvous will be if this node is elected. It listens already.
  std::optional<asio::ip::tcp::acceptor> candidate_;
  std::unique_ptr<store::Server> new_store() const {
    return std::make_unique<store::Server>(loop_, store::StoreLimits{}, admits_);
  }

  const Admits admits_;
  const WorkersUntil workers_until_;
  std::unique_ptr<store::Server> store_;
  std::unique_ptr<rendezvous::Host> host_;
  std::unique_ptr<rendezvous::JobControl> control_;  // of host_
  std::unique_ptr<HostedPort> port_;                 // of host_, where other nodes come
  std::string taken_port_;  // why this node could not host; empty: it did not try, or hosts
  std::unique_ptr<rendezvous::Session> session_;
};

}  // namespace ddprun::agent
