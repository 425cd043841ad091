// How the elements of each dtype are stored, and in what they are added. Everything is inlined: the
// kernels that use it are compiled for several instruction sets, and a call would leave them.
#pragma once

#include <bit>
#include <cstdint>

#define DDPRUN_INLINE [[gnu::always_inline]] inline

namespace ddprun::worker {

// 2^112: a half's exponent is biased by 15, a float's by 127.
inline constexpr float kRebias = 0x1.0p112F;

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
  // a subnormal half has its own. The addition rounds there.
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000U;
  // Otherwise 13 bits go. Rounds to nearest even. It adds one less than half of their range, and
  // one more if the last bit that stays is set. A carry into the exponent is right.
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
// Half or BFloat16, whose sums are rounded after each addition.
template <typename Element>
struct Rounded {
  using Stored = typename Element::Stored;
  // A value that the element can store.
  struct Sum {
    float value = 0;
    DDPRUN_INLINE friend Sum operator+(Sum a, Sum b) {
      return {Element::load(Element::store(a.value + b.value))};
    }
  };
  DDPRUN_INLINE static Sum load(Stored value) { return {Element::load(value)}; }
  DDPRUN_INLINE static Stored store(Sum sum) { return Element::store(sum.value); }
};
// Its sum keeps the low bits, as if it wrapped at each addition.
struct Byte {
  using Stored = std::uint8_t;
  using Sum = std::uint32_t;
  DDPRUN_INLINE static Sum load(Stored value) { return value; }
  DDPRUN_INLINE static Stored store(Sum value) { return static_cast<Stored>(value); }
};

}  // namespace ddprun::worker
