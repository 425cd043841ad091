// The host's border to remote nodes: gRPC, one call a node (proto/rendezvous.proto). Takes
// connections that were accepted elsewhere, so that one port can serve the TCPStore protocol and
// this (an HTTP/2 client's first byte is 'P', a store client's 0x00). Decides nothing: each call
// is a Session of the Host. A broken call is a lost node at once, a silent one after
// ServiceOptions::silence_ticks beats.
//
// Used on the loop's thread. gRPC's threads enter the loop by post and nothing else. gRPC is set up
// by the first adopt().
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "rendezvous/host.h"

namespace ddprun::rendezvous {

// How long the destruction of a Service waits for the last news (JobEnded) to be sent to nodes that
// read slowly.
inline constexpr std::chrono::milliseconds kFlushLimit{2000};
// Calls at once, authenticated ones: every node has one.
inline constexpr int kMaxCalls = kMaxNodes;
// Connections over which no node has been let in: all nodes of the largest job may come at once.
// For one more the oldest is cut.
inline constexpr std::size_t kMaxStrangers = kMaxNodes;
// Between two warnings that connections were refused.
inline constexpr std::chrono::seconds kRefusalWarningEvery{10};

struct ServiceOptions {
  std::string token;             // nodes must bring it; empty: anyone may join
  std::string rdzv_id = "none";  // the job served; a node of another job is refused
  std::chrono::milliseconds beat_every = kBeatEvery;
  int silence_ticks = kSilenceTicks;
  std::size_t max_strangers = kMaxStrangers;
};

class Service {
 public:
  // `loop` and `host` outlive the service.
  Service(boost::asio::io_context& loop, Host& host, ServiceOptions options);
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;
  // Sends what is still queued, ends every call and stops gRPC's threads; takes up to about
  // kFlushLimit. The remaining nodes count as lost to the host.
  ~Service();

  // Serves the connected TCP socket `fd`, whose bytes are still unread (peeking is fine). Takes the
  // descriptor over, in every case. The node's address is the socket's peer.
  void adopt(int fd);

 private:
  class Calls;
  std::unique_ptr<Calls> calls_;
};

}  // namespace ddprun::rendezvous
