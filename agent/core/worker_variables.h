// Builds the whole environment of one worker: what the worker inherits from us, and on top of that
// what its round says. Pure: it neither reads nor sets this process's environment. Any thread.
#pragma once

#include <string>
#include <vector>

#include "agent/core/config.h"
#include "rendezvous/rendezvous.h"

namespace ddprun::agent {

// What only this node knows, and only when the worker starts.
struct LocalFacts {
  rendezvous::Seat seat{};  // this node's place in the round
  std::string error_file{};
  // The network interface towards the other nodes; empty: unknown, or there are no other nodes.
  std::string interface {};
  std::string timer_file{};  // the watchdog's FIFO; empty: off
};

// NAME=value, each name once. A job of several nodes gets GLOO_SOCKET_IFNAME unless the user set
// it. Without the variable, Gloo takes the address of the host's own name. On many hosts that is
// loopback, where no other node can reach it.
std::vector<std::string> worker_variables(const AgentConfig& config, const rendezvous::Round& round,
                                          int local_rank, const LocalFacts& facts);

}  // namespace ddprun::agent
