// The clock of the agent's cores: they are given the time and never look at it. Any thread.
#pragma once

#include <chrono>

namespace ddprun::agent {

using Time = std::chrono::steady_clock::time_point;

// For the shells.
inline Time now() { return std::chrono::steady_clock::now(); }

}  // namespace ddprun::agent
