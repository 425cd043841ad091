// The TCP connections that were handed to gRPC. gRPC closes them when it likes and tells nobody.
// This class keeps the addresses of each connection, for the call that is opened over it later, and
// whether a node was let in over it. Without a node, a connection is a stranger's. Beyond a limit
// the oldest stranger is cut. Otherwise somebody who only connects could use up all descriptors,
// and no node could come in.
//
// Loop's thread. No other thread of the process may open sockets: only then does a descriptor's
// number name the same connection until add() gets the number again. Owned by Service.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <deque>
#include <map>
#include <string>

#include "rendezvous/membership.h"

namespace ddprun::rendezvous {

class Connections {
 public:
  explicit Connections(std::size_t most_strangers) : most_strangers_(most_strangers) {}

  // `fd` is a connected socket that gRPC gets next. May cut the oldest stranger.
  void add(int fd);
  // A node was let in over the connection `peer`, which is no stranger's any more. `peer` is gRPC's
  // name for it: "fd:7" (gRPC's chttp2_server.cc, grpc_server_add_channel_from_fd).
  void let_in(const std::string& peer);
  // The addresses of the connection `peer`. Both are empty if there is no such connection.
  Observed observed(const std::string& peer) const;

 private:
  struct Connection {
    Observed observed;
    ino_t inode = 0;  // the socket's; if `fd` has another inode now, this connection is closed
  };

  bool is_open(int fd) const;

  const std::size_t most_strangers_;
  // By descriptor. An entry stays until its number is used again: nobody tells when it is closed.
  std::map<int, Connection> connections_;
  std::deque<int> strangers_;  // oldest first
};

}  // namespace ddprun::rendezvous
