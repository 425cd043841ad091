// Durations as people read them. Pure; any thread.
#pragma once

#include <chrono>

namespace ddprun {

// In seconds, with their fraction.
inline double in_seconds(std::chrono::duration<double> length) { return length.count(); }

}  // namespace ddprun
