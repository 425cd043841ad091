// The inner loop of sums. It adds one range of several ranks' buffers and stores the result to all
// of them, or to one. It is compiled for AVX-512, AVX2 and plain x86-64; the loader chooses
// when the program starts. All three give the same bits, and arm64's one code gives them, too. Any
// thread; the caller makes sure that nobody else touches the range meanwhile.
#pragma once

#include <ddprun/collective.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace ddprun::worker {

// When the sum of 16-bit floats is rounded to 16 bits. The other dtypes have all their bits always.
enum class Rounding : std::uint8_t {
  kEach,  // after each addition
  kOnce,  // after the last one
};

// For each i < count: v = b[0][i] + (b[1][i] + (… + (b[n-2][i] + b[n-1][i]))), stored to every
// b[k][i]. The buffers must not overlap and must be aligned for `dtype`. 16-bit floats are added in
// 32 bits and rounded to nearest even: as `rounding` says. Integers wrap. Does nothing for fewer
// than two buffers.
void sum_to_all(std::span<std::byte* const> buffers, std::size_t count, Dtype dtype,
                Rounding rounding);

// The same sums, stored to `result` alone. It may be one of the buffers.
void sum_to_one(std::byte* result, std::span<std::byte* const> buffers, std::size_t count,
                Dtype dtype, Rounding rounding);

// The conversions of 16-bit floats that the sum uses. Public for its tests.
float widen_half(std::uint16_t bits);
std::uint16_t round_to_half(float value);
float widen_bfloat16(std::uint16_t bits);
std::uint16_t round_to_bfloat16(float value);

}  // namespace ddprun::worker
