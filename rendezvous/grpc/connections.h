// The TCP connections that were handed to gRPC. gRPC closes them when it likes and tells nobody.
// Its reads are metered (metered_reads.h). This class keeps the addresses of each connection, for
// the call that is opened over it later. It keeps whether a node was let in over it, too. Without a
// node, a connection is an unauthenticated peer's. Beyond a limit the oldest of them is cut.
// Otherwise somebody who only connects could use up all descriptors, and no node could come in.
//
// Loop's thread. No other thread of the process may open sockets. Only then does a descriptor's
// number name the same connection until add() gets it again. Owned by Service.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "base/alarm.h"
#include "base/result.h"
#include "rendezvous/core/membership.h"
#include "rendezvous/trust/metered_reads.h"
#include "rendezvous/trust/refusals.h"
#include "rendezvous/trust/unproven_connections.h"

namespace ddprun::rendezvous {

class Connections {
 public:
  explicit Connections(std::size_t most_unauthenticated)
      : most_unauthenticated_(most_unauthenticated) {}

  // How a connection is handed to gRPC, which names it accordingly: "fd:7" (gRPC's
  // chttp2_server.cc, grpc_server_add_channel_from_fd), or "ipv4:10.0.0.1:4711" by its peer.
  enum class Way { kClear, kTls };

  // Makes a connected socket fit for gRPC. gRPC sets these options on the connections that it
  // accepts, but not on one that it is handed. Errors: kSystem.
  static Result<void> prepare(int fd);
  // `fd` is prepared, and gRPC gets it next. `address` is its peer's. May cut the oldest
  // unauthenticated one.
  void add(int fd, Way way, std::string address);
  // A node was let in over the connection `peer`, which is no unauthenticated peer's any more.
  // `peer` is gRPC's name for it. Returns its descriptor, or -1.
  int admitted(const std::string& peer);
  static bool is_clear(const std::string& peer) { return peer.starts_with("fd:"); }
  // gRPC has not closed it.
  bool is_open(int fd) const;
  // It sent more than its meter allows.
  bool was_cut(int fd) const;
  // Ends the connection; gRPC notices, and closes it.
  void cut(int fd) const;
  std::string address(int fd) const;
  // The address of the peer of any connected socket.
  static std::string address_of(int fd);
  // Forgets what gRPC has closed. add() does it now and then; who has time does it when nodes have
  // gone.
  void forget_closed();
  std::size_t size() const { return connections_.size(); }
  // The addresses of the connection `peer`. Both are empty if there is no such connection.
  PeerInfo observed(const std::string& peer) const;

 private:
  struct Connection {
    PeerInfo observed;
    std::shared_ptr<MeteredConnection> meter{};
    std::string name;  // gRPC's
  };

  int descriptor_of(const std::string& peer) const;

  const std::size_t most_unauthenticated_;
  // By descriptor. Nobody tells when one is closed: it stays until its number is used again, or
  // until somebody looks.
  std::map<int, Connection> connections_;
  std::map<std::string, int> by_name_;  // the descriptor of each
  std::deque<int> unauthenticated_;     // oldest first
  std::size_t look_at_size_ = 0;        // so many: add() forgets those that are closed
};

// Takes connections that were accepted elsewhere, and hands them to gRPC when UnprovenConnections
// says so. Until then a connection is a descriptor, of which nothing is read. One that has not sent
// a whole beginning (HTTP/2's preface and SETTINGS, or a TLS hello) does not take part. With TLS it
// refuses those that come in clear, without gRPC. Loop's thread; owned by Service.
class Intake {
 public:
  struct Options {
    UnprovenLimits unproven;
    bool wants_tls;  // who comes in clear is refused
  };
  // Hands the connection to gRPC, which owns `fd` from then on.
  using Serve = std::function<void(int fd, Connections::Way)>;

  // `connections` and `refusals` must outlive it.
  Intake(boost::asio::io_context& loop, Options options, Connections& connections,
         Refusals& refusals, Serve serve);
  Intake(const Intake&) = delete;
  Intake& operator=(const Intake&) = delete;
  ~Intake();

  // Owns `fd`.
  void take(int fd, Connections::Way way);
  // Notes that the caller of the connection `peer` (gRPC's name for it) has proved that it knows
  // the token.
  void admitted(const std::string& peer);

 private:
  using Time = Alarm::Time;

  struct Waiting {
    Connections::Way way;
    Time since;
    std::string address;  // of the peer
    bool is_greeted = false;
  };

  void enter(int fd, Connections::Way way);
  void serve_next();
  void serve(int fd, const Waiting& one);
  void look();
  void sweep();
  void look_at_beginners();
  Time::duration look_at_beginners_every() const;
  void look_at_waiting();
  void forget_gone();
  void greet_nodes(Time now);
  void refuse_clear(int fd);

  boost::asio::io_context& loop_;
  const Options options_;
  Connections& connections_;
  Refusals& refusals_;
  const Serve serve_;
  UnprovenConnections unproven_;
  std::unordered_map<int, Waiting> waiting_;  // by descriptor
  struct Beginner {
    int fd;
    Connections::Way way;
    Time until;
  };
  std::deque<Beginner> beginners_;  // oldest first
  Time beginners_seen_{};
  Time waiting_seen_{};
  Time swept_{};
  std::shared_ptr<int> clear_peers_ = std::make_shared<int>(0);  // that are being refused
  Alarm alarm_;
};

}  // namespace ddprun::rendezvous
