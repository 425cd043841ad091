// A node's session with a rendezvous in another process: the Session over gRPC. It connects, and
// tries again while the host is not up yet. Once it is connected it does not connect again. If the
// call breaks or the host is silent, the session is lost. SessionLost says how long the workers may
// live on. With another session the node may come back until then (Session::resume()). Used on the
// loop's thread; gRPC's threads reach it through a LoopGate only. Owned by the agent.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/core/rendezvous.h"
#include "rendezvous/trust/node_handshake.h"
#include "rendezvous/trust/tls_files.h"

namespace ddprun::rendezvous {

// The end of a session that left waits no longer than this for the host's receipt (default of
// RemoteOptions::leave_limit).
inline constexpr std::chrono::milliseconds kLeaveLimit{1000};

struct RemoteOptions {
  std::string host;  // name or numeric address, IPv6 without brackets; for messages
  // The numeric addresses of the host, tried in turn. None if `host` is one. Names are not looked
  // up here.
  std::vector<std::string> addresses{};
  std::uint16_t port = 29400;
  // The host has one of so many ports, from `port` on. More than one: who serves another job at one
  // of them is passed over.
  int port_count = 1;
  CallerToken token{};           // this node and the host prove that they know it
  std::string rdzv_id = "none";  // must be the job that the host serves
  // Without it there is no TLS. The host's certificate must bear `host`.
  TlsFiles tls{};
  // How long it may take in all until the host is reached and has let us in.
  std::chrono::milliseconds read_timeout = std::chrono::seconds(60);
  std::chrono::milliseconds leave_limit = kLeaveLimit;
  // If it is false, a host that cannot be reached ends the session at once, with kUnavailable.
  bool tries_again = true;
  // The node comes back, and its workers may live until then. A lease prolongs that as soon as the
  // host has surely read resume(). That must be said when the host lets us in.
  std::optional<std::chrono::steady_clock::time_point> workers_until{};
  // Called when the host has let us in, there; may be empty.
  std::function<void(const std::string& address, std::uint16_t port)> on_admitted{};
  // Called with the end of the lease when it has moved; may be empty. It is later than lease_ends()
  // while the host is asked once more (HeldLease::is_over()).
  std::function<void(std::chrono::steady_clock::time_point)> lease_moved{};
  // Called when the host has answered a heartbeat, with the time that took; may be empty.
  std::function<void(std::chrono::milliseconds)> heartbeat_answered{};
};

// Starts to connect at once. join() and the rest may be called before it is connected; they are
// sent then. `loop` must outlive the session. Destroying the session is quick; only
// one that left waits for the host's receipt, at most for leave_limit. The host then counts this
// node as lost, unless it left. The error of SessionLost says what was tried.
// Its codes:
//   kTimedOut         nobody answered within read_timeout, or too few nodes joined in time
//   kUnavailable      the connection broke, or the host was silent until the lease ended
//   kRejected         the host said no: wrong token or job id, rank taken, job over; or it does not
//                     prove that it knows the token. Without was_reached it may be no host of ours
//   kInvalidArgument  `options` or the NodeSpec has a value that cannot be
//   kLimit            too many nodes, or a name in the NodeSpec is too long
//   kProtocol         the peer broke the protocol, or join() was called out of turn
std::unique_ptr<Session> open_remote_session(boost::asio::io_context& loop, RemoteOptions options,
                                             Session::MessageHandler handler);

}  // namespace ddprun::rendezvous
