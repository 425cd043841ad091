// Tensors in parts that stay in the cache. If several operations follow each other, each number
// then travels from memory and back once, and not once an operation. Any thread.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace ddprun::worker {

// Numbers of a part. Adam has seven tensors of them at most, 896 KiB of float32. Servers of today
// have a second-level cache of 1 MiB a core or more.
inline constexpr std::int64_t kBlockNumbers = std::int64_t{1} << 15;

// Returns whether parts of these are the same numbers in all of them. Undefined tensors do not
// count. On a GPU a part costs more than it saves. Several threads of LibTorch would have too
// little to do in a part. They would round the last few numbers of each thread's in their own way.
template <std::size_t kCount>
bool fit_in_blocks(const std::array<at::Tensor, kCount>& tensors) {
  const at::Tensor& first = tensors[0];
  if (at::get_num_threads() > 1 || !first.is_cpu() || first.layout() != at::kStrided ||
      first.numel() <= kBlockNumbers || !first.is_non_overlapping_and_dense())
    return false;
  return std::ranges::all_of(tensors, [&first](const at::Tensor& tensor) {
    return !tensor.defined() ||
           (tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.sizes() == first.sizes() &&
            tensor.strides() == first.strides());
  });
}

// Calls `step` with the same part of each tensor, one part after another. Or calls it with the
// tensors themselves, if they are small, or lie in memory in different ways. Undefined ones stay
// so. `step` must treat each number alone. Then the bits are those of one call. LibTorch may round
// the last few numbers in another way: a part is a power of two. The caller records no gradients.
template <std::size_t kCount, typename Step>
void in_blocks(const std::array<at::Tensor, kCount>& tensors, const Step& step) {
  if (!fit_in_blocks(tensors)) return step(tensors);
  const std::int64_t numbers = tensors[0].numel();
  for (std::int64_t begin = 0; begin < numbers; begin += kBlockNumbers) {
    std::array<at::Tensor, kCount> parts;
    std::ranges::transform(tensors, parts.begin(), [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return tensor;
      const std::int64_t length = std::min(kBlockNumbers, numbers - begin);
      return tensor.as_strided({length}, {1}, tensor.storage_offset() + begin);
    });
    step(parts);
  }
}

}  // namespace ddprun::worker
