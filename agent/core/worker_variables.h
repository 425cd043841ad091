// The whole environment of one worker: what it inherits, overridden by what the round says. Pure.
#pragma once

#include <string>
#include <vector>

#include "agent/core/config.h"
#include "rendezvous/rendezvous.h"

namespace ddprun::agent {

// What is only known on this node, when the worker starts.
struct LocalFacts {
  int seat = 0;  // this node's, in round.seats
  std::string error_file{};
  // The network interface that faces the other nodes; empty: unknown or none needed.
  std::string interface {};
  std::string timer_file{};  // the watchdog's FIFO; empty: off
};

// NAME=value, each name once. GLOO_SOCKET_IFNAME is given to jobs of several nodes unless the user
// set it: left alone, Gloo takes the address that the host name resolves to, on many hosts
// loopback.
std::vector<std::string> worker_variables(const AgentConfig& config, const rendezvous::Round& round,
                                          int local_rank, const LocalFacts& facts);

}  // namespace ddprun::agent
