// Reduces a rank's chunk in an all-reduce. One range of several ranks' buffers becomes one, which
// is stored to all of them, or to one. Sums are in sum_kernels.h; the others are rare and
// simple. Any thread; the caller makes sure that nobody else touches the range meanwhile.
#pragma once

#include <ddprun/collective.h>

#include <cstddef>
#include <span>

namespace ddprun::worker {

// For each i < count: reduces b[0][i] … b[n-1][i] and stores the result to every b[k][i]. The
// buffers must not overlap and must be aligned for `dtype`, which must be a float for kAverage.
// Does nothing for fewer than two buffers.
void reduce_to_all(std::span<std::byte* const> buffers, std::size_t count, Dtype dtype,
                   Reduction reduction);

// The same, stored to `result` alone. It may be one of the buffers.
void reduce_to_one(std::byte* result, std::span<std::byte* const> buffers, std::size_t count,
                   Dtype dtype, Reduction reduction);

// Copies b[0] to all others: `bytes` of it.
void copy_first_to_all(std::span<std::byte* const> buffers, std::size_t bytes);

}  // namespace ddprun::worker
