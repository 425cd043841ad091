#include "worker/collective/kernels/reduce_kernels.h"

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/assert.h"
#include "worker/collective/kernels/elements.h"
#include "worker/collective/kernels/sum_kernels.h"

namespace ddprun::worker {
namespace {

using Buffers = std::span<std::byte* const>;

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
template <typename Number>
Number smaller(Number a, Number b) {
  return a < b || a != a ? a : b;
}
template <typename Number>
Number larger(Number a, Number b) {
  return a > b || a != a ? a : b;
}

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

}  // namespace

void copy_first_to_all(std::span<std::byte* const> buffers, std::size_t bytes) {
  for (std::byte* buffer : buffers.subspan(1)) std::memcpy(buffer, buffers[0], bytes);
}

void reduce_to_first(std::span<std::byte* const> buffers, std::size_t count, Dtype dtype,
                     Reduction reduction) {
  if (buffers.size() < 2) return;
  if (is_sum(reduction)) return sum_to_first(buffers, count, dtype, rounding_of(reduction));
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

void reduce_to_all(std::span<std::byte* const> buffers, std::size_t count, Dtype dtype,
                   Reduction reduction) {
  if (buffers.size() < 2) return;
  if (is_sum(reduction)) return sum_to_all(buffers, count, dtype, rounding_of(reduction));
  reduce_to_first(buffers, count, dtype, reduction);
  copy_first_to_all(buffers, count * size_of(dtype));
}

}  // namespace ddprun::worker
