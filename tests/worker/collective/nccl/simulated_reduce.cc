#include "tests/worker/collective/nccl/simulated_reduce.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

namespace ddprun::worker::sim {
namespace {

// As wide as float, with half of its bits. Rounds to nearest even.
struct BFloat16 {
  BFloat16() = default;
  explicit BFloat16(float value) {
    const auto wide = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = wide + 0x7FFFU + ((wide >> 16U) & 1U);
    bits = static_cast<std::uint16_t>((std::isnan(value) ? wide | 0x400000U : rounded) >> 16U);
  }
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
  }
  std::uint16_t bits = 0;
};

template <typename T>
constexpr bool is_narrow = std::is_same_v<T, BFloat16> || std::is_same_v<T, _Float16>;

// The type in which one step is computed, before it is rounded to T. Integers wrap.
template <typename T, bool = std::is_integral_v<T>>
struct WideOf {
  using type = std::conditional_t<is_narrow<T>, float, T>;
};
template <typename T>
struct WideOf<T, true> {
  using type = std::make_unsigned_t<T>;
};
template <typename T>
using Wide = typename WideOf<T>::type;

template <typename T>
T step(T left, T right, ncclRedOp_t reduction) {
  const auto a = static_cast<Wide<T>>(left);
  const auto b = static_cast<Wide<T>>(right);
  if (reduction == ncclProd) return static_cast<T>(a * b);
  if (reduction != ncclMin && reduction != ncclMax) return static_cast<T>(a + b);
  if constexpr (std::is_integral_v<T>) {
    return (left < right) == (reduction == ncclMin) ? left : right;
  } else {  // NaN is left out
    return static_cast<T>(reduction == ncclMin ? std::fmin(a, b) : std::fmax(a, b));
  }
}

template <typename T>
std::vector<std::byte> reduced_as(const std::vector<const void*>& ranks, std::size_t count,
                                  ncclRedOp_t reduction) {
  std::vector<T> all(count);
  const bool average = reduction == ncclAvg;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (std::size_t i = 0; i < count; ++i) {
      T value;
      std::memcpy(&value, static_cast<const std::byte*>(ranks[rank]) + i * sizeof value,
                  sizeof value);
      if constexpr (!std::is_integral_v<T>) {
        const auto share = static_cast<Wide<T>>(1) / static_cast<Wide<T>>(ranks.size());
        if (average) value = step(value, static_cast<T>(share), ncclProd);
      }
      all[i] = rank == 0 ? value : step(all[i], value, reduction);
    }
  }
  if constexpr (std::is_integral_v<T>) {
    for (T& value : all)
      value = static_cast<T>(value / (average ? static_cast<T>(ranks.size()) : T{1}));
  }
  std::vector<std::byte> bytes(count * sizeof(T));
  if (count != 0) std::memcpy(bytes.data(), all.data(), bytes.size());
  return bytes;
}

}  // namespace

std::size_t size_of(ncclDataType_t type) {
  switch (static_cast<int>(type)) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      std::abort();
  }
}

std::vector<std::byte> reduced(const std::vector<const void*>& ranks, std::size_t count,
                               ncclDataType_t type, ncclRedOp_t reduction) {
  switch (static_cast<int>(type)) {
    case ncclInt8:
      return reduced_as<std::int8_t>(ranks, count, reduction);
    case ncclUint8:
      return reduced_as<std::uint8_t>(ranks, count, reduction);
    case ncclInt32:
      return reduced_as<std::int32_t>(ranks, count, reduction);
    case ncclUint32:
      return reduced_as<std::uint32_t>(ranks, count, reduction);
    case ncclInt64:
      return reduced_as<std::int64_t>(ranks, count, reduction);
    case ncclUint64:
      return reduced_as<std::uint64_t>(ranks, count, reduction);
    case ncclFloat16:
      return reduced_as<_Float16>(ranks, count, reduction);
    case ncclBfloat16:
      return reduced_as<BFloat16>(ranks, count, reduction);
    case ncclFloat32:
      return reduced_as<float>(ranks, count, reduction);
    case ncclFloat64:
      return reduced_as<double>(ranks, count, reduction);
    default:
      std::abort();
  }
}

}  // namespace ddprun::worker::sim
