// The connections that were handed to gRPC, which closes them when it likes and tells nobody. What
// is kept of each: the addresses its stream is asked for later, and whether a node has spoken over
// it. One over which none has is a stranger's; beyond a limit the oldest of those is cut, so that
// who only connects cannot use up the descriptors and keep the nodes out.
//
// Loop's thread, which must be the only one of the process that opens sockets: a descriptor's
// number then names the same connection until this class hears of another one with it. Owned by
// Service.
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

  // `fd` is a connected socket and about to become gRPC's. May cut the oldest stranger.
  void add(int fd);
  // A node was let in over the connection that gRPC calls `peer` ("fd:7"): no stranger any more.
  void let_in(const std::string& peer);
  // The addresses of the connection that gRPC calls `peer`; empty ones where it is unknown.
  Observed observed(const std::string& peer) const;

 private:
  struct Connection {
    Observed observed;
    ino_t inode = 0;  // of the socket: another one behind the same number says that this is closed
  };

  bool is_open(int fd) const;

  const std::size_t most_strangers_;
  // A descriptor's entry is replaced when its number is used again.
  std::map<int, Connection> connections_;
  std::deque<int> strangers_;  // oldest first
};

}  // namespace ddprun::rendezvous
