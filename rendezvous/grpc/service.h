// Lets remote nodes in to a Host: over gRPC, with one call per node (proto/rendezvous.proto). It
// decides nothing. Each call is a Session of a Host: that of the one job, or the one of its own
// job. It accepts no connection. It gets those that were accepted elsewhere, so that one port can
// serve this and the TCPStore protocol. The first byte of an HTTP/2 client is 'P', that of a store
// client 0x00. A node whose call breaks is lost at once if its process is dead, which its store's
// port tells. Otherwise it may come back. A silent node is lost some time after its lease
// (keep_alive.h).
//
// Used on the loop's thread. gRPC's threads reach the loop through a LoopGate only. Owned by the
// agent that hosts the job.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "rendezvous/core/keep_alive.h"
#include "rendezvous/host/host.h"
#include "rendezvous/trust/node_authenticator.h"
#include "rendezvous/trust/tls_files.h"

namespace grpc {
class ServerBuilder;
}

namespace ddprun::rendezvous {

// How long ~Service() waits until the last message (JobEnded) is sent, for nodes that read slowly.
inline constexpr std::chrono::milliseconds kFlushLimit{2000};
// The most calls at a time that were let in, unless it is told otherwise. Every node has one.
inline constexpr std::size_t kMaxCalls = kMaxMembers;
// The most connections over which no node was let in. All nodes of the largest job may connect at
// the same time. For one more, the oldest of these connections is cut.
inline constexpr std::size_t kMaxUnauthenticated = kMaxMembers;

// The ways of a service that has many jobs.
struct ManyJobs {
  // The token that a node of this job must prove to know. Nothing if there can be no such job.
  std::function<std::optional<HostToken>(const std::string& rdzv_id)> token;
  // The host of the job, when its node asks for its first seat. `round` is that of the seat to
  // which it comes back, else 0. If there is none, it returns the one message that the node gets.
  std::function<std::variant<Host*, HostMessage>(const std::string& rdzv_id, const NodeSpec& spec,
                                                 std::int64_t round)>
      host;
};

struct ServiceOptions {
  HostToken token{};               // each node must prove that it knows it
  std::string rdzv_id = "none";    // the job served; a node of another job is refused
  std::optional<ManyJobs> jobs{};  // then `token` and `rdzv_id` are not used
  bool answers_health = false;     // gRPC's own health service, which asks for no proof
  KeepAlive keep_alive;
  int expected_nodes = 1;  // leases are made for at least so many
  // Leases are made for at most so many: where another leader may follow, it must know how long
  // they hold.
  int most_nodes = kMaxMembers;
  std::size_t max_unauthenticated = kMaxUnauthenticated;
  std::chrono::milliseconds proof_limit = kProofLimit;  // a caller has so long to prove itself
  // The most nodes of all jobs together, and what a node beyond them is told.
  std::size_t max_calls = kMaxCalls;
  std::string too_many_calls = "rendezvous: as many nodes are here already as a host can serve";
  // Tells whether a node may be given a lease, although another process may lead by now. Always, if
  // it is empty.
  std::function<bool()> may_grant{};
  // Returns why no node is let in now, because another process may lead. Returns an empty text if
  // nodes are let in. It may try again.
  std::function<std::string()> turns_away{};
  // A node whose call broke may come back over another one. Off: it is lost at once.
  bool resumes = false;
  TlsFiles tls{};          // each node must show a certificate of tls.ca; not set: no TLS
  bool tls_mixed = false;  // nodes may come in clear as well
  // Adds further gRPC services to the server, which are served on the same connections.
  std::function<void(grpc::ServerBuilder&)> more{};
};

class Service {
 public:
  // `loop` and `host` must outlive the service.
  Service(boost::asio::io_context& loop, Host& host, ServiceOptions options);
  // With ServiceOptions::jobs. A host that was found must outlive its sessions.
  Service(boost::asio::io_context& loop, ServiceOptions options);
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;
  // Sends what is still queued, ends every call and stops gRPC's threads. Blocks for about
  // kFlushLimit at most. The host counts the nodes that are still here as lost.
  ~Service();

  // Serves the connected TCP socket `fd`. Nothing may have been read from it; peeking is fine. The
  // service owns the descriptor from now on, also if it cannot serve it. The node's address is the
  // peer address of the socket. The first adopt() sets gRPC up.
  void adopt(int fd);
  // The same for a connection that begins with TLS. Only with ServiceOptions::tls.
  void adopt_tls(int fd);
  // Notes that the caller of the connection `peer` (gRPC's name for it) has proved that it knows
  // the token. For the services that ServiceOptions::more adds.
  void admitted(const std::string& peer);
  // Frees what it keeps of connections that have ended. For a quiet moment after many have.
  void tidy();

  // This process leads no more: breaks all calls off that were let in, with no last word. So the
  // nodes look for the next leader. The hosts hear that their nodes are lost. Not from inside a
  // host.
  void let_go();
  // Sets the answer of gRPC's health service; at first it is serving.
  void set_serving(bool is_serving);

 private:
  class Calls;
  std::unique_ptr<Calls> calls_;
};

}  // namespace ddprun::rendezvous
