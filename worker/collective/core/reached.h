// Compares counters that wrap: tickets, and the sequence numbers of operations. Pure.
#pragma once

#include <cstdint>

namespace ddprun::worker {

// Returns whether a counter that wraps has come to `target`. Right while the two are less than 2^31
// steps apart. Far fewer sums than that are ever under way at once.
constexpr bool reached(std::uint32_t value, std::uint32_t target) {
  return static_cast<std::int32_t>(value - target) >= 0;
}

}  // namespace ddprun::worker
