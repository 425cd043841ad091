// The clock of the agent's cores: they are given the time and never look at it. Any thread.
#pragma once

#include <chrono>

namespace ddprun::agent {

using Time = std::chrono::steady_clock::time_point;

}  // namespace ddprun::agent
