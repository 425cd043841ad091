// The inner loop of the shared-memory sum: adds one range of several ranks' buffers and stores the
// result to all of them. It is compiled for AVX-512, AVX2 and plain x86-64; the loader chooses when
// the program starts. All three give the same bits. Any thread; the caller makes sure that nobody
// else touches the range meanwhile.
#pragma once

#include <cstddef>
#include <span>

#include "worker/collective/collective.h"

namespace ddprun::worker {

// For each i < count: v = b[0][i] + (b[1][i] + (… + (b[n-2][i] + b[n-1][i]))), stored to every
// b[k][i]. The buffers must not overlap and must be aligned for `dtype`.
// 16-bit floats are widened, added in 32 bits and rounded once, to nearest even. Integers wrap.
// Does nothing for fewer than two buffers.
void sum_to_all(std::span<std::byte* const> buffers, std::size_t count, Dtype dtype);

// The conversions of 16-bit floats that the sum uses. Public for its tests.
float widen_half(std::uint16_t bits);
std::uint16_t round_to_half(float value);
float widen_bfloat16(std::uint16_t bits);
std::uint16_t round_to_bfloat16(float value);

}  // namespace ddprun::worker
