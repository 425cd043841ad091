#include "worker/collective/kernels/reduce_kernels.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "base/assert.h"
#include "worker/collective/kernels/copy_kernels.h"
#include "worker/collective/kernels/elements.h"
#include "worker/collective/kernels/sum_kernels.h"

namespace ddprun::worker {
namespace {

using Buffers = std::span<std::byte* const>;

constexpr std::size_t kBlockBytes = 4096;

// Calls `act` with the element type of `dtype`.
template <typename Act>
void with_element(Dtype dtype, Act act) {
  switch (dtype) {
    case Dtype::kFloat32:
      return act(Plain<float>());
    case Dtype::kFloat64:
      return act(Plain<double>());
    case Dtype::kFloat16:
      return act(Half());
    case Dtype::kBFloat16:
      return act(BFloat16());
    case Dtype::kInt32:
      return act(Plain<std::int32_t>());
    case Dtype::kInt64:
      return act(Plain<std::int64_t>());
    case Dtype::kInt8:
      return act(Plain<std::int8_t>());
    case Dtype::kUInt8:
      return act(Plain<std::uint8_t>());
  }
}

Rounding rounding_of(Reduction sum) {
  return sum == Reduction::kSum ? Rounding::kEach : Rounding::kOnce;
}

// A NaN is not equal to itself, and stays.
// NOLINTBEGIN(misc-redundant-expression): it is how a NaN is found
template <typename Number>
Number smaller(Number a, Number b) {
  return a < b || a != a ? a : b;
}
template <typename Number>
Number larger(Number a, Number b) {
  return a > b || a != a ? a : b;
}
// NOLINTEND(misc-redundant-expression)

// Makes the result in the first buffer, rank by rank.
template <typename Element, typename Choose>
void choose_first(Buffers buffers, std::size_t count, Choose choose) {
  using Stored = typename Element::Stored;
  auto* first = reinterpret_cast<Stored*>(buffers[0]);
  for (std::byte* buffer : buffers.subspan(1)) {
    const auto* other = reinterpret_cast<const Stored*>(buffer);
    for (std::size_t i = 0; i < count; ++i)
      first[i] = Element::store(choose(Element::load(first[i]), Element::load(other[i])));
  }
}

// Adds in the order of ring_order.h, divides, and only then rounds to what is stored.
template <typename Element>
void average_first(Buffers buffers, std::size_t count) {
  using Stored = typename Element::Stored;
  using Sum = typename Element::Sum;
  const auto ranks = static_cast<Sum>(buffers.size());
  const auto at = [&](std::size_t rank, std::size_t i) {
    return Element::load(reinterpret_cast<const Stored*>(buffers[rank])[i]);
  };
  for (std::size_t i = 0; i < count; ++i) {
    Sum sum = at(buffers.size() - 1, i);
    for (std::size_t rank = buffers.size() - 1; rank-- > 0;) sum = at(rank, i) + sum;
    reinterpret_cast<Stored*>(buffers[0])[i] = Element::store(sum / ranks);
  }
}

void choose_or_average_first(Buffers buffers, std::size_t count, Dtype dtype, Reduction reduction) {
  with_element(dtype, [&]<typename Element>(Element) {
    using Sum = typename Element::Sum;
    if (reduction == Reduction::kMin) {
      choose_first<Element>(buffers, count, smaller<Sum>);
    } else if (reduction == Reduction::kMax) {
      choose_first<Element>(buffers, count, larger<Sum>);
    } else if constexpr (std::is_floating_point_v<Sum>) {
      average_first<Element>(buffers, count);
    } else {
      DDPRUN_ASSERT(reduction != Reduction::kAverage);
    }
  });
}

}  // namespace

void copy_first_to_all(std::span<std::byte* const> buffers, std::size_t bytes) {
  for (std::byte* buffer : buffers.subspan(1)) copy_bytes(buffer, buffers[0], bytes);
}

void reduce_to_one(std::byte* result, std::span<std::byte* const> buffers, std::size_t count,
                   Dtype dtype, Reduction reduction) {
  if (buffers.size() < 2) return;
  if (is_sum(reduction)) return sum_to_one(result, buffers, count, dtype, rounding_of(reduction));
  if (result == buffers[0]) return choose_or_average_first(buffers, count, dtype, reduction);
  // The first buffer stays as it is: a copy stands in its place, a few elements at a time.
  alignas(std::max_align_t) std::array<std::byte, kBlockBytes> first;
  const std::size_t element = size_of(dtype);
  std::vector<std::byte*> block(buffers.begin(), buffers.end());
  for (std::size_t begin = 0; begin < count; begin += kBlockBytes / element) {
    const std::size_t length = std::min(count - begin, kBlockBytes / element);
    for (std::size_t k = 1; k < block.size(); ++k) block[k] = buffers[k] + begin * element;
    block[0] = first.data();
    std::memcpy(first.data(), buffers[0] + begin * element, length * element);
    choose_or_average_first(block, length, dtype, reduction);
    std::memcpy(result + begin * element, first.data(), length * element);
  }
}

void reduce_to_all(std::span<std::byte* const> buffers, std::size_t count, Dtype dtype,
                   Reduction reduction) {
  if (buffers.size() < 2) return;
  if (is_sum(reduction)) return sum_to_all(buffers, count, dtype, rounding_of(reduction));
  choose_or_average_first(buffers, count, dtype, reduction);
  copy_first_to_all(buffers, count * size_of(dtype));
}

}  // namespace ddprun::worker
