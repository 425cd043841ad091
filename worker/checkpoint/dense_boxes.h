// Ranges of a dense tensor's memory as boxes of the tensor. A distributed checkpoint knows boxes
// alone: their first index and their length in each dimension. A rank of ShardedParallel owns a
// range of the memory, which may begin and end inside a row. Pure arithmetic, in elements.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace ddprun::worker {

// Indices [offsets, offsets + sizes) in each dimension of a tensor. One element if there are none.
struct Box {
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> sizes;  // as many

  bool operator==(const Box&) const = default;
};

std::int64_t elements_of(const std::vector<std::int64_t>& sizes);

// Elements [begin, end) of a dense tensor, in the order in which they lie in memory.
struct DenseRange {
  std::vector<std::int64_t> sizes;    // of the whole tensor
  std::vector<std::int64_t> strides;  // of the whole tensor, in memory without gaps
  std::int64_t begin = 0;
  std::int64_t end = 0;

  bool operator==(const DenseRange&) const = default;
};

// A box whose elements lie in one row in memory.
struct BoxInRow {
  Box box;
  std::vector<std::int64_t> strides;  // of its elements, in each dimension
  std::int64_t start = 0;             // of its first element behind the range's begin

  bool operator==(const BoxInRow&) const = default;
};

// Returns the strides of a tensor of these sizes whose last dimension counts fastest.
std::vector<std::int64_t> row_strides(const std::vector<std::int64_t>& sizes);

// Returns whether the elements lie in memory without gaps, in some order of the dimensions.
bool is_dense(const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides);

// Returns the whole of such a tensor.
DenseRange whole_range(std::vector<std::int64_t> sizes, std::vector<std::int64_t> strides);

// Returns the boxes that make up a range, in its order. A whole tensor is one. Another range of `d`
// dimensions is 2d-1 at most, and an empty one none.
std::vector<BoxInRow> boxes_of(const DenseRange& range);

// Returns the indices that both have. Nothing if there are none.
std::optional<Box> common_box(const Box& a, const Box& b);

}  // namespace ddprun::worker
