// The agent's clock. It never jumps when somebody sets the date of the host. Code that only decides
// (Lifecycle, for example) gets the time as an argument and never calls now(). So a test can give
// it any time. Any thread.
#pragma once

#include <chrono>

namespace ddprun::agent {

using Time = std::chrono::steady_clock::time_point;

// Code that does I/O reads the clock by it, and passes the time on.
inline Time now() { return std::chrono::steady_clock::now(); }

}  // namespace ddprun::agent
