// The TCP connections that were handed to gRPC. gRPC closes them when it likes and tells nobody.
// What it reads from each is metered (metered_reads.h). This class keeps the addresses of each connection, for the call that is opened over it later, and
// whether a node was let in over it. Without a node, a connection is a stranger's. Beyond a limit
// the oldest stranger is cut. Otherwise somebody who only connects could use up all descriptors,
// and no node could come in.
//
// Loop's thread. No other thread of the process may open sockets: only then does a descriptor's
// number name the same connection until add() gets the number again. Owned by Service.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "proto/result.h"
#include "rendezvous/membership.h"
#include "rendezvous/trust/metered_reads.h"

namespace ddprun::rendezvous {

class Connections {
 public:
  explicit Connections(std::size_t most_strangers) : most_strangers_(most_strangers) {}

  // How a connection is handed to gRPC, which names it accordingly: "fd:7" (gRPC's
  // chttp2_server.cc, grpc_server_add_channel_from_fd), or "ipv4:10.0.0.1:4711" by its peer.
  enum class Way { kClear, kTls };

  // Makes a connected socket what gRPC wants: it sets these options on the connections that it
  // accepts, but not on one that it is handed. Errors: kSystem.
  static Result<void> prepare(int fd);
  // `fd` is prepared, and gRPC gets it next. May cut the oldest stranger.
  void add(int fd, Way way);
  // A node was let in over the connection `peer`, which is no stranger's any more. `peer` is gRPC's
  // name for it. Returns its descriptor, or -1.
  int let_in(const std::string& peer);
  // gRPC has not closed it.
  bool is_open(int fd) const;
  // It sent more than its meter allows.
  bool was_cut(int fd) const;
  // Ends the connection; gRPC notices, and closes it.
  void cut(int fd) const;
  std::string address(int fd) const;
  // Of the peer of any connected socket.
  static std::string address_of(int fd);
  // Forgets what gRPC has closed. add() does it now and then; who has time does it when nodes have
  // gone.
  void forget_closed();
  std::size_t size() const { return connections_.size(); }
  // The addresses of the connection `peer`. Both are empty if there is no such connection.
  Observed observed(const std::string& peer) const;

 private:
  struct Connection {
    Observed observed;
    std::shared_ptr<MeteredConnection> meter{};
    std::string name;  // gRPC's
  };

  int descriptor_of(const std::string& peer) const;

  const std::size_t most_strangers_;
  // By descriptor. Nobody tells when one is closed: it stays until its number is used again, or until
  // somebody looks.
  std::map<int, Connection> connections_;
  std::map<std::string, int> by_name_;  // the descriptor of each
  std::deque<int> strangers_;           // oldest first
  std::size_t look_at_size_ = 0;        // so many: add() forgets those that are closed
};

}  // namespace ddprun::rendezvous
