// Builds the whole environment of one worker. It is what the worker inherits from us, and on top of
// that what its round says. Pure: it neither reads nor sets this process's environment. Any thread.
#pragma once

#include <string>
#include <vector>

#include "agent/core/config.h"
#include "rendezvous/core/rendezvous.h"

namespace ddprun::agent {

// The facts that only this node knows, and only when the worker starts.
struct LocalFacts {
  rendezvous::Seat seat{};  // this node's place in the round
  std::string error_file{};
  // The network interface towards the other nodes; empty: unknown, or there are no other nodes.
  std::string interface {};
  std::string timer_file{};   // the watchdog's FIFO; empty: off
  std::string notice_file{};  // it appears with a notice; empty: none comes
};

// NAME=value entries.
using Variables = std::vector<std::string>;

// The entry of this name, or end().
Variables::iterator find_variable(Variables& env, const std::string& name);

// Adds the entry, in place of one of the same name. Two of one name must not be there: programs
// differ in which of the two they take.
void set_variable(Variables& env, const std::string& name, const std::string& value);

// NAME=value, each name once. A job of several nodes gets GLOO_SOCKET_IFNAME unless the user set
// it. Without the variable, Gloo takes the address of the host's own name. On many hosts that is
// loopback, where no other node can reach it.
Variables worker_variables(const AgentConfig& config, const rendezvous::Round& round,
                           int local_rank, const LocalFacts& facts);

}  // namespace ddprun::agent
