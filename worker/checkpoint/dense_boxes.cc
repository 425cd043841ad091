#include "worker/checkpoint/dense_boxes.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace ddprun::worker {
namespace {

// The dimensions of a dense tensor, the one that counts slowest in memory first.
std::vector<std::size_t> memory_order(const std::vector<std::int64_t>& sizes,
                                      const std::vector<std::int64_t>& strides) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    // A dimension of one element may have any stride.
    return strides[a] != strides[b] ? strides[a] > strides[b] : sizes[a] > sizes[b];
  });
  return order;
}

// Splits ranges of a tensor whose last dimension counts fastest.
class Splitter {
 public:
  explicit Splitter(const std::vector<std::int64_t>& sizes) : sizes_(sizes) {}

  std::vector<BoxInRow> split(std::int64_t begin, std::int64_t end) {
    if (begin < end) split(0, begin, end);
    return std::move(boxes_);
  }

 private:
  // Adds elements [begin, end) of the row that `rows_` names in the dimensions before this one.
  void split(std::size_t dimension, std::int64_t begin, std::int64_t end) {
    if (dimension == sizes_.size()) return add(dimension, 0, 1, 1);
    const auto row = std::reduce(sizes_.begin() + static_cast<std::ptrdiff_t>(dimension) + 1,
                                 sizes_.end(), std::int64_t{1}, std::multiplies<>());
    std::int64_t first = begin / row;
    const std::int64_t last = end / row;
    if (first == last) return split_row(dimension, first, begin % row, end % row);
    if (begin % row != 0) split_row(dimension, first++, begin % row, row);
    if (first < last) add(dimension, first, last - first, (last - first) * row);
    if (end % row != 0) split_row(dimension, last, 0, end % row);
  }

  void split_row(std::size_t dimension, std::int64_t index, std::int64_t begin, std::int64_t end) {
    rows_.push_back(index);
    split(dimension + 1, begin, end);
    rows_.pop_back();
  }

  // Adds rows [first, first + count) of a dimension as a whole.
  void add(std::size_t dimension, std::int64_t first, std::int64_t count, std::int64_t elements) {
    Box box{.offsets = rows_, .sizes = std::vector<std::int64_t>(rows_.size(), 1)};
    for (std::size_t i = dimension; i < sizes_.size(); ++i) {
      box.offsets.push_back(i == dimension ? first : 0);
      box.sizes.push_back(i == dimension ? count : sizes_[i]);
    }
    auto strides = row_strides(box.sizes);
    boxes_.push_back({std::move(box), std::move(strides), done_});
    done_ += elements;
  }

  const std::vector<std::int64_t>& sizes_;
  std::vector<std::int64_t> rows_;
  std::vector<BoxInRow> boxes_;
  std::int64_t done_ = 0;
};

std::vector<std::int64_t> reordered(const std::vector<std::int64_t>& values,
                                    const std::vector<std::size_t>& order) {
  std::vector<std::int64_t> result(values.size());
  for (std::size_t i = 0; i < order.size(); ++i) result[order[i]] = values[i];
  return result;
}

}  // namespace

std::int64_t elements_of(const std::vector<std::int64_t>& sizes) {
  return std::reduce(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

std::vector<std::int64_t> row_strides(const std::vector<std::int64_t>& sizes) {
  std::vector<std::int64_t> strides(sizes.size(), 1);
  for (std::size_t i = sizes.size(); i-- > 1;)
    strides[i - 1] = strides[i] * std::max<std::int64_t>(sizes[i], 1);
  return strides;
}

bool is_dense(const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides) {
  if (elements_of(sizes) == 0) return true;
  const auto order = memory_order(sizes, strides);
  std::int64_t expected = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    if (sizes[order[i]] == 1) continue;
    if (strides[order[i]] != expected) return false;
    expected *= sizes[order[i]];
  }
  return true;
}

DenseRange whole_range(std::vector<std::int64_t> sizes, std::vector<std::int64_t> strides) {
  const std::int64_t end = elements_of(sizes);
  return {std::move(sizes), std::move(strides), 0, end};
}

std::vector<BoxInRow> boxes_of(const DenseRange& range) {
  const auto order = memory_order(range.sizes, range.strides);
  std::vector<std::int64_t> sizes;
  sizes.reserve(order.size());
  for (const std::size_t dimension : order) sizes.push_back(range.sizes[dimension]);
  auto boxes = Splitter(sizes).split(range.begin, range.end);
  for (BoxInRow& each : boxes) {
    each.box.offsets = reordered(each.box.offsets, order);
    each.box.sizes = reordered(each.box.sizes, order);
    each.strides = reordered(each.strides, order);
  }
  return boxes;
}

std::optional<Box> common_box(const Box& a, const Box& b) {
  if (a.offsets.size() != b.offsets.size()) return std::nullopt;
  Box common;
  for (std::size_t i = 0; i < a.offsets.size(); ++i) {
    const std::int64_t begin = std::max(a.offsets[i], b.offsets[i]);
    const std::int64_t end = std::min(a.offsets[i] + a.sizes[i], b.offsets[i] + b.sizes[i]);
    if (begin >= end) return std::nullopt;
    common.offsets.push_back(begin);
    common.sizes.push_back(end - begin);
  }
  return common;
}

}  // namespace ddprun::worker
