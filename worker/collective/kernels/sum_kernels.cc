#include "worker/collective/kernels/sum_kernels.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "worker/collective/kernels/clones.h"
#include "worker/collective/kernels/elements.h"

namespace ddprun::worker {
namespace {

// Elements of one tile in sum_tiled: 8 or 16 KiB of sums. They fit into a first-level cache of 32
// KiB together with the bytes that are read.
constexpr std::size_t kTile = 2048;

constexpr std::size_t kLineBytes = 64;  // of a cache line
// From here on a look at where buffers begin costs nothing beside their sum.
constexpr std::size_t kLargeBytes = std::size_t{64} << 10;

using Buffers = std::span<std::byte* const>;

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

// For any number of ranks. The sums of a tile stay in the first-level cache while the ranks are
// added one after another. The results get them: each may be one of the buffers.
template <typename Element>
DDPRUN_INLINE void sum_tiled(Buffers buffers, std::size_t count, Buffers results) {
  std::array<typename Element::Sum, kTile> memory{};
  for (std::size_t start = 0; start < count; start += kTile) {
    const std::span<typename Element::Sum> sums(memory.data(),
                                                count - start < kTile ? count - start : kTile);
    add_tile<Element>(buffers, start, sums);
    for (std::byte* result : results) {
      auto* rank = reinterpret_cast<typename Element::Stored*>(result) + start;
      for (std::size_t i = 0; i < sums.size(); ++i) rank[i] = Element::store(sums[i]);
    }
  }
}

// The numbers of ranks that hosts usually have are unrolled. Each one costs code in 24 clones.
template <typename Element>
DDPRUN_INLINE void sum(Buffers buffers, std::size_t count, Buffers results) {
  if (results.data() != buffers.data() || results.size() != buffers.size())
    return sum_tiled<Element>(buffers, count, results);
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
      return sum_tiled<Element>(buffers, count, results);
  }
}

// Integers are added as unsigned numbers: the overflow of a signed one is undefined.
DDPRUN_CLONES void sum_float(Buffers buffers, std::size_t count, Buffers results) {
  sum<Plain<float>>(buffers, count, results);
}
DDPRUN_CLONES void sum_double(Buffers buffers, std::size_t count, Buffers results) {
  sum<Plain<double>>(buffers, count, results);
}
DDPRUN_CLONES void sum_half(Buffers buffers, std::size_t count, Buffers results) {
  sum<Half>(buffers, count, results);
}
DDPRUN_CLONES void sum_bfloat16(Buffers buffers, std::size_t count, Buffers results) {
  sum<BFloat16>(buffers, count, results);
}
DDPRUN_CLONES void sum_rounded_half(Buffers buffers, std::size_t count, Buffers results) {
  sum<Rounded<Half>>(buffers, count, results);
}
DDPRUN_CLONES void sum_rounded_bfloat16(Buffers buffers, std::size_t count, Buffers results) {
  sum<Rounded<BFloat16>>(buffers, count, results);
}
DDPRUN_CLONES void sum_int8(Buffers buffers, std::size_t count, Buffers results) {
  sum_tiled<Byte>(buffers, count, results);
}
DDPRUN_CLONES void sum_int32(Buffers buffers, std::size_t count, Buffers results) {
  sum<Plain<std::uint32_t>>(buffers, count, results);
}
DDPRUN_CLONES void sum_int64(Buffers buffers, std::size_t count, Buffers results) {
  sum<Plain<std::uint64_t>>(buffers, count, results);
}

void sum_part(Buffers buffers, std::size_t count, Dtype dtype, Rounding rounding, Buffers results) {
  // The only addition is the last one.
  const bool once = rounding == Rounding::kOnce || buffers.size() == 2;
  switch (dtype) {
    case Dtype::kFloat32:
      return sum_float(buffers, count, results);
    case Dtype::kFloat64:
      return sum_double(buffers, count, results);
    case Dtype::kFloat16:
      return (once ? sum_half : sum_rounded_half)(buffers, count, results);
    case Dtype::kBFloat16:
      return (once ? sum_bfloat16 : sum_rounded_bfloat16)(buffers, count, results);
    case Dtype::kInt32:
      return sum_int32(buffers, count, results);
    case Dtype::kInt64:
      return sum_int64(buffers, count, results);
    case Dtype::kInt8:
    case Dtype::kUInt8:
      return sum_int8(buffers, count, results);
  }
}

// Returns how many elements lie before the first cache line that begins in all buffers; 0 where
// there is none.
std::size_t before_the_lines(Buffers buffers, std::size_t element_bytes) {
  const auto offset_of = [](const std::byte* at) {
    return reinterpret_cast<std::uintptr_t>(at) % kLineBytes;
  };
  const std::size_t offset = offset_of(buffers.front());
  const bool alike = std::ranges::all_of(
      buffers, [&](const std::byte* buffer) { return offset_of(buffer) == offset; });
  return alike && offset != 0 ? (kLineBytes - offset) / element_bytes : 0;
}

std::vector<std::byte*> behind(Buffers buffers, std::size_t bytes) {
  std::vector<std::byte*> moved(buffers.begin(), buffers.end());
  for (std::byte*& buffer : moved) buffer += bytes;
  return moved;
}

// Vectors that cross cache lines cost a sixth of the time, and Gloo's chunks begin anywhere.
// `results` is `buffers` if all buffers get the sums.
void sum_to(Buffers buffers, std::size_t count, Dtype dtype, Rounding rounding, Buffers results) {
  if (buffers.size() < 2) return;
  const std::size_t element = size_of(dtype);
  const std::size_t head = count * element < kLargeBytes ? 0 : before_the_lines(buffers, element);
  if (head == 0) return sum_part(buffers, count, dtype, rounding, results);
  sum_part(buffers, head, dtype, rounding, results);
  const auto lines = behind(buffers, head * element);
  if (results.data() == buffers.data())
    return sum_part(lines, count - head, dtype, rounding, lines);
  sum_part(lines, count - head, dtype, rounding, behind(results, head * element));
}

}  // namespace

void sum_to_all(std::span<std::byte* const> buffers, std::size_t count, Dtype dtype,
                Rounding rounding) {
  sum_to(buffers, count, dtype, rounding, buffers);
}

void sum_to_one(std::byte* result, std::span<std::byte* const> buffers, std::size_t count,
                Dtype dtype, Rounding rounding) {
  sum_to(buffers, count, dtype, rounding, std::span(&result, 1));
}

float widen_half(std::uint16_t bits) { return half_to_float(bits); }
std::uint16_t round_to_half(float value) { return float_to_half(value); }
float widen_bfloat16(std::uint16_t bits) { return bfloat16_to_float(bits); }
std::uint16_t round_to_bfloat16(float value) { return float_to_bfloat16(value); }

}  // namespace ddprun::worker
