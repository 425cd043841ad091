#include "worker/collective/sum_kernels.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <utility>

#include "proto/assert.h"

// Each kernel below is compiled once per instruction set, and the loader picks one. GCC can clone
// plain functions only. So the kernels are plain, and the templates that do the work are inlined
// into each clone; a call out of a clone would run code for plain x86-64.
#define DDPRUN_INLINE [[gnu::always_inline]] inline
#define DDPRUN_CLONES [[gnu::target_clones("avx512f", "avx2", "default")]]

namespace ddprun::worker {
namespace {

// 2^112: a half's exponent is biased by 15, a float's by 127.
constexpr float kRebias = 0x1.0p112F;

// Elements of one tile in sum_tiled: 8 or 16 KiB of sums, which fit into a first-level cache of 32
// KiB together with what is read.
constexpr std::size_t kTile = 2048;

DDPRUN_INLINE float half_to_float(std::uint16_t bits) {
  // Shift exponent and mantissa into a float's places. One multiplication then corrects the bias,
  // and is right for subnormal halves too.
  const std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7fffU) << 13U;
  const float scaled = std::bit_cast<float>(magnitude) * kRebias;
  // Infinity and NaN keep their mantissa and get a float's highest exponent.
  const bool special = (bits & 0x7c00U) == 0x7c00U;
  const std::uint32_t value =
      special ? (magnitude | 0x7f800000U) : std::bit_cast<std::uint32_t>(scaled);
  return std::bit_cast<float>(value | static_cast<std::uint32_t>(bits & 0x8000U) << 16U);
}

DDPRUN_INLINE std::uint16_t float_to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16U) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  // Below 2^-14 the half is subnormal. 0.5 is so large that a float near it has its last bit where
  // a subnormal half has its own: the addition rounds there.
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000U;
  // Otherwise 13 bits go. Adding one less than half of their range, and one more if the last bit
  // that stays is set, rounds to nearest even. A carry into the exponent is right.
  const std::uint32_t odd = (magnitude >> 13U) & 1U;
  const std::uint32_t normal = (magnitude - 0x38000000U + 0xfffU + odd) >> 13U;
  std::uint32_t half = magnitude < 0x38800000U ? subnormal : normal;
  // 65520 and above round to infinity. NaN must not become infinity by losing its mantissa.
  half = magnitude >= 0x477ff000U ? 0x7c00U : half;
  half = magnitude > 0x7f800000U ? 0x7e00U : half;
  return static_cast<std::uint16_t>(half | sign);
}

DDPRUN_INLINE float bfloat16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
}

// A bfloat16 is the upper half of a float. Rounds to nearest even, like float_to_half. Without the
// test a NaN with all mantissa bits set would round to zero.
DDPRUN_INLINE std::uint16_t float_to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
  const std::uint32_t rounded = bits + 0x7fffU + ((bits >> 16U) & 1U);
  return static_cast<std::uint16_t>((nan ? 0x7fc00000U : rounded) >> 16U);
}

using Buffers = std::span<std::byte* const>;

// How an element is stored and in what it is added.
template <typename T>
struct Plain {
  using Stored = T;
  using Sum = T;
  DDPRUN_INLINE static Sum load(Stored value) { return value; }
  DDPRUN_INLINE static Stored store(Sum value) { return value; }
};
struct Half {
  using Stored = std::uint16_t;
  using Sum = float;
  DDPRUN_INLINE static Sum load(Stored value) { return half_to_float(value); }
  DDPRUN_INLINE static Stored store(Sum value) { return float_to_half(value); }
};
struct BFloat16 {
  using Stored = std::uint16_t;
  using Sum = float;
  DDPRUN_INLINE static Sum load(Stored value) { return bfloat16_to_float(value); }
  DDPRUN_INLINE static Stored store(Sum value) { return float_to_bfloat16(value); }
};

// For a fixed number of ranks: one pass, and the sum stays in a register. The right fold gives the
// order of the ring: first + (second + (…)).
template <typename Element, std::size_t... kRank>
DDPRUN_INLINE void sum_fixed(std::byte* const* buffers, std::size_t count,
                             std::index_sequence<kRank...> /*ranks*/) {
  using Stored = typename Element::Stored;
  const std::array ranks{reinterpret_cast<Stored*>(buffers[kRank])...};
  // The buffers do not overlap. GCC cannot know that, and would test all pairs at run time.
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) {
    const Stored stored = Element::store((Element::load(ranks[kRank][i]) + ...));
    ((ranks[kRank][i] = stored), ...);
  }
}

// Makes the sums of one tile. They start as the last rank's elements; then each earlier rank is
// added in front.
template <typename Element>
DDPRUN_INLINE void add_tile(Buffers buffers, std::size_t start,
                            std::span<typename Element::Sum> sums) {
  using Stored = typename Element::Stored;
  const auto* last = reinterpret_cast<const Stored*>(buffers.back()) + start;
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = Element::load(last[i]);
  for (std::size_t k = buffers.size() - 1; k-- > 0;) {
    const auto* rank = reinterpret_cast<const Stored*>(buffers[k]) + start;
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = Element::load(rank[i]) + sums[i];
  }
}

// For any number of ranks: the sums of a tile stay in the first-level cache while the ranks are
// added one after another.
template <typename Element>
DDPRUN_INLINE void sum_tiled(Buffers buffers, std::size_t count) {
  std::array<typename Element::Sum, kTile> memory{};
  for (std::size_t start = 0; start < count; start += kTile) {
    const std::span<typename Element::Sum> sums(memory.data(),
                                                count - start < kTile ? count - start : kTile);
    add_tile<Element>(buffers, start, sums);
    for (std::byte* buffer : buffers) {
      auto* rank = reinterpret_cast<typename Element::Stored*>(buffer) + start;
      for (std::size_t i = 0; i < sums.size(); ++i) rank[i] = Element::store(sums[i]);
    }
  }
}

// The numbers of ranks that hosts usually have are unrolled. Each one costs code in 18 clones.
template <typename Element>
DDPRUN_INLINE void sum(Buffers buffers, std::size_t count) {
  switch (buffers.size()) {
    case 2:
      return sum_fixed<Element>(buffers.data(), count, std::make_index_sequence<2>());
    case 3:
      return sum_fixed<Element>(buffers.data(), count, std::make_index_sequence<3>());
    case 4:
      return sum_fixed<Element>(buffers.data(), count, std::make_index_sequence<4>());
    case 8:
      return sum_fixed<Element>(buffers.data(), count, std::make_index_sequence<8>());
    default:
      return sum_tiled<Element>(buffers, count);
  }
}

// Integers are added as unsigned numbers: the overflow of a signed one is undefined.
DDPRUN_CLONES void sum_float(Buffers buffers, std::size_t count) {
  sum<Plain<float>>(buffers, count);
}
DDPRUN_CLONES void sum_double(Buffers buffers, std::size_t count) {
  sum<Plain<double>>(buffers, count);
}
DDPRUN_CLONES void sum_half(Buffers buffers, std::size_t count) { sum<Half>(buffers, count); }
DDPRUN_CLONES void sum_bfloat16(Buffers buffers, std::size_t count) {
  sum<BFloat16>(buffers, count);
}
DDPRUN_CLONES void sum_int32(Buffers buffers, std::size_t count) {
  sum<Plain<std::uint32_t>>(buffers, count);
}
DDPRUN_CLONES void sum_int64(Buffers buffers, std::size_t count) {
  sum<Plain<std::uint64_t>>(buffers, count);
}

}  // namespace

void sum_to_all(std::span<std::byte* const> buffers, std::size_t count, Dtype dtype) {
  if (buffers.size() < 2) return;
  switch (dtype) {
    case Dtype::kFloat32:
      return sum_float(buffers, count);
    case Dtype::kFloat64:
      return sum_double(buffers, count);
    case Dtype::kFloat16:
      return sum_half(buffers, count);
    case Dtype::kBFloat16:
      return sum_bfloat16(buffers, count);
    case Dtype::kInt32:
      return sum_int32(buffers, count);
    case Dtype::kInt64:
      return sum_int64(buffers, count);
    case Dtype::kByte:
      break;
  }
  DDPRUN_ASSERT(dtype != Dtype::kByte);
}

float widen_half(std::uint16_t bits) { return half_to_float(bits); }
std::uint16_t round_to_half(float value) { return float_to_half(value); }
float widen_bfloat16(std::uint16_t bits) { return bfloat16_to_float(bits); }
std::uint16_t round_to_bfloat16(float value) { return float_to_bfloat16(value); }

}  // namespace ddprun::worker
