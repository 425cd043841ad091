// Names and what is behind them: addresses, whether they are this node's, and whether a port there
// answers. Blocks: base/bounded.h asks on a thread of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "launcher/doctor/node_facts.h"

namespace ddprun::launcher {

// A connection that is not there by then is none: packets to there are dropped.
inline constexpr std::chrono::milliseconds kProbeAnswerLimit{2000};

LookUp look_up(const std::string& name);

// Looks the host up. Asks `port` there for a connection, which is closed at once. Or finds out who
// has the port here. Port 0: neither. No connection is waited for beyond `end`.
EndpointFacts gather_endpoint(const std::string& host, std::uint16_t port,
                              std::chrono::steady_clock::time_point end);

}  // namespace ddprun::launcher
