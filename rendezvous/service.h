// Lets remote nodes in to a Host: over gRPC, with one call per node (proto/rendezvous.proto). It
// decides nothing: each call is a Session of the Host. It accepts no connection: it gets those that
// were accepted elsewhere, so that one port can serve this and the TCPStore protocol (the first
// byte of an HTTP/2 client is 'P', that of a store client 0x00). A node whose call breaks is lost
// at once; a silent node is lost some time after its lease (keep_alive.h).
//
// Used on the loop's thread. gRPC's threads reach the loop through a LoopGate only. Owned by the
// agent that hosts the job.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "rendezvous/host.h"
#include "rendezvous/keep_alive.h"

namespace ddprun::rendezvous {

// How long ~Service() waits until the last message (JobEnded) is sent, for nodes that read slowly.
inline constexpr std::chrono::milliseconds kFlushLimit{2000};
// The most calls at a time that were let in. Every node has one.
inline constexpr int kMaxCalls = kMaxMembers;
// The most connections over which no node was let in. All nodes of the largest job may connect at
// the same time. For one more, the oldest of these connections is cut.
inline constexpr std::size_t kMaxStrangers = kMaxMembers;
// The time between two warnings about refused connections.
inline constexpr std::chrono::seconds kRefusalWarningEvery{10};

struct ServiceOptions {
  std::string token;             // each node must show it; empty: anyone may join
  std::string rdzv_id = "none";  // the job served; a node of another job is refused
  KeepAlive keep_alive;
  int expected_nodes = 1;  // leases are made for at least so many
  std::size_t max_strangers = kMaxStrangers;
};

class Service {
 public:
  // `loop` and `host` must outlive the service.
  Service(boost::asio::io_context& loop, Host& host, ServiceOptions options);
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;
  // Sends what is still queued, ends every call and stops gRPC's threads. Blocks for about
  // kFlushLimit at most. The host counts the nodes that are still here as lost.
  ~Service();

  // Serves the connected TCP socket `fd`. Nothing may have been read from it; peeking is fine. The
  // service owns the descriptor from now on, also if it cannot serve it. The node's address is the
  // peer address of the socket. The first adopt() sets gRPC up.
  void adopt(int fd);

 private:
  class Calls;
  std::unique_ptr<Calls> calls_;
};

}  // namespace ddprun::rendezvous
