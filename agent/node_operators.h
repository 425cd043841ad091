// Answers this node's own user, who asks on this host (ddpctl). It tells the job as this node knows
// it, and the stacks of its workers. It only looks. Loop's thread; owned by Agent.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "agent/core/config.h"
#include "agent/core/lifecycle.h"
#include "agent/network/node_services.h"
#include "agent/standstill/stacks.h"
#include "base/loop.h"
#include "rendezvous/control/node_socket.h"
#include "rendezvous/core/timeline.h"

namespace ddprun::agent {

class NodeOperators {
 public:
  // All of it must outlive this.
  struct Sources {
    const AgentConfig& config;
    const std::string& hostname;
    const Lifecycle& lifecycle;
    const rendezvous::Timeline& timeline;
    const std::unique_ptr<NodeServices>& services;  // null until they are there
    const Children& children;
    Stacks::Workers workers;
    std::string log_folder;
    std::function<rendezvous::StepSpread(int)> spread;  // of a local rank
  };

  // Listens from now on.
  NodeOperators(asio::io_context& loop, Sources sources);

  // The workers of the attempt are to end.
  void attempt_ends() { stacks_.attempt_ends(); }

 private:
  void answer(const rendezvous::ControlQuestion& question, rendezvous::NodeSocket::Reply reply);
  void show_stacks(const rendezvous::ShowStacks& wanted, rendezvous::NodeSocket::Reply reply);
  rendezvous::JobSnapshot job() const;

  const Sources sources_;
  const int pid_;  // of the process that the user started
  Stacks stacks_;
  rendezvous::NodeSocket socket_;  // last: it asks all of the above
};

}  // namespace ddprun::agent
