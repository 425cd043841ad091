// The inner loop of the shared-memory sum: adds one range of several ranks' buffers and stores the
// result to all of them. Compiled for AVX-512, AVX2 and plain x86-64, chosen when the program
// starts; all give the same bits. No synchronisation.
#pragma once

#include <cstddef>
#include <span>

#include "worker/collective/collective.h"

namespace ddprun::worker {

// For each i < count: v = b[0][i] + (b[1][i] + (… + (b[n-2][i] + b[n-1][i]))), stored to every
// b[k][i]. `buffers` do not overlap and are aligned for `dtype`, which is not kByte. 16-bit floats
// are widened, added in 32 bits and rounded once, to nearest even. Integers wrap.
void sum_to_all(std::span<std::byte* const> buffers, std::size_t count, Dtype dtype);

// 16-bit floats and back, as the sum does it. For tests and for filling buckets without LibTorch.
float widen_half(std::uint16_t bits);
std::uint16_t round_to_half(float value);
float widen_bfloat16(std::uint16_t bits);
std::uint16_t round_to_bfloat16(float value);

}  // namespace ddprun::worker
