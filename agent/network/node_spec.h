// Makes the words of this node about itself, for its join. Pure but for the pid. Any thread.
#pragma once

#include <string>

#include "agent/core/config.h"
#include "agent/network/node_services.h"
#include "rendezvous/core/rendezvous.h"

namespace ddprun::agent {

// `store`: where this node would serve the store of the next round.
rendezvous::NodeSpec node_spec(const AgentConfig& config, const std::string& hostname,
                               const StoreAddress& store);

}  // namespace ddprun::agent
