// Whether an optimizer steps tensors of a list.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <unordered_set>
#include <vector>

namespace ddprun::worker {

// Returns whether one of `stepped` is one of `parameters`: the same tensor, not one with the same
// numbers.
inline bool any_is_of(const std::vector<at::Tensor>& stepped,
                      const std::vector<at::Tensor>& parameters) {
  std::unordered_set<const at::TensorImpl*> own;
  for (const at::Tensor& parameter : parameters) own.insert(parameter.unsafeGetTensorImpl());
  return std::any_of(stepped.begin(), stepped.end(), [&own](const at::Tensor& tensor) {
    return own.contains(tensor.unsafeGetTensorImpl());
  });
}

}  // namespace ddprun::worker
