// This node's place in the rendezvous, and the store it serves: decides from the plan who hosts,
// binds the ports, and hands out one Session. Three shapes:
//   alone    Host in this process; the store on a port of its own, nothing else listens
//   host     Host, Service and PortDemultiplexer here; other agents come in through the endpoint's port
//   remote   a gRPC client of the host
// Shell of the loop's thread; owned by Agent, which it must not outlive.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/core/config.h"
#include "agent/network/port_demultiplexer.h"
#include "proto/loop.h"
#include "rendezvous/host.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/service.h"
#include "store/server.h"

namespace ddprun::agent {

// Where this node would serve the store of the next round.
struct StoreAddress {
  std::string host;
  std::uint16_t port = 0;
};

class NodeServices {
 public:
  NodeServices(asio::io_context& loop, RendezvousPlan plan);
  NodeServices(const NodeServices&) = delete;
  NodeServices& operator=(const NodeServices&) = delete;
  ~NodeServices();

  // Binds, and connects or hosts. HostMessage may arrive from then on. Errors (a port taken, a name
  // unknown) name flag and value.
  asio::awaitable<Result<void>> open(rendezvous::Session::MessageHandler handler);

  bool is_open() const { return session_ != nullptr; }
  // The rendezvous. REQUIRES is_open().
  rendezvous::Session& session() { return *session_; }

  // The network interface that faces the rendezvous; empty where all nodes may be this host.
  // Workers' own traffic belongs there too: left alone, Gloo takes the address that the host name
  // resolves to, which on many hosts is loopback.
  const std::string& interface_towards_peers() const { return interface_; }

  // Ends the store of the last round and binds a port for the next one, so that no key, connection
  // or late byte of an old attempt can reach a new one. With a fixed port (static) the port stays
  // and the store is emptied when the round closes.
  Result<StoreAddress> prepare_store();
  // This node has rank 0: serve the store that was prepared.
  void serve_store();

 private:
  asio::awaitable<Result<asio::ip::address>> find_endpoint();
  void face(const asio::ip::address& endpoint);
  asio::awaitable<Result<void>> open_c10d(rendezvous::Session::MessageHandler handler);
  asio::awaitable<Result<void>> open_static(rendezvous::Session::MessageHandler handler);
  void host_here(rendezvous::Session::MessageHandler handler, const std::string& seen_at);
  std::string address_to_bind(const asio::ip::address& endpoint) const;
  void open_demultiplexer(asio::ip::tcp::acceptor acceptor, bool with_store);
  void open_remote_session(rendezvous::Session::MessageHandler handler);

  asio::io_context& loop_;
  RendezvousPlan plan_;
  std::string store_host_;  // numeric; where this node's store listens and is reached
  std::string interface_;
  std::vector<std::string> endpoint_addresses_;  // numeric; the endpoint's name was looked up once
  // The endpoint is this host's own name, which its hosts file maps to loopback.
  bool own_name_ = false;
  std::optional<StoreAddress> fixed_store_;  // static: this node's store has the endpoint's port
  std::optional<asio::ip::tcp::acceptor> prepared_;
  std::unique_ptr<store::Server> store_;
  std::unique_ptr<rendezvous::Host> host_;
  std::unique_ptr<rendezvous::Service> service_;
  std::unique_ptr<PortDemultiplexer> demultiplexer_;
  std::unique_ptr<rendezvous::Session> session_;
};

}  // namespace ddprun::agent
