// Between float32 and bfloat16, for what travels in half of its bytes. Any thread.
#pragma once

#include <cstdint>
#include <span>

namespace ddprun::worker {

// Rounds to nearest even. Both spans have the same length and do not overlap.
void to_bfloat16(std::span<const float> from, std::span<std::uint16_t> to);
void from_bfloat16(std::span<const std::uint16_t> from, std::span<float> to);

}  // namespace ddprun::worker
