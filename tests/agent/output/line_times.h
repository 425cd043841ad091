// The moment at which tests of lines and turns begin.
#pragma once

#include <chrono>

#include "agent/core/clock.h"

namespace ddprun::agent {

inline constexpr Time kStart{std::chrono::hours(1)};

}  // namespace ddprun::agent
