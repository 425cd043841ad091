// The tensors that an optimizer steps, of all its groups: LibTorch's optimizers, ours, and
// ZeroOptimizer have them alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <unordered_set>
#include <vector>

namespace ddprun::worker {

template <typename Optimizer>
std::vector<at::Tensor> stepped_tensors(Optimizer& optimizer) {
  std::vector<at::Tensor> tensors;
  for (auto& group : optimizer.param_groups())
    tensors.insert(tensors.end(), group.params().begin(), group.params().end());
  return tensors;
}

// Whether one of `stepped` is one of `parameters`: the same tensor, not one with the same numbers.
inline bool any_is_of(const std::vector<at::Tensor>& stepped,
                      const std::vector<at::Tensor>& parameters) {
  std::unordered_set<const at::TensorImpl*> own;
  for (const at::Tensor& parameter : parameters) own.insert(parameter.unsafeGetTensorImpl());
  return std::any_of(stepped.begin(), stepped.end(), [&own](const at::Tensor& tensor) {
    return own.contains(tensor.unsafeGetTensorImpl());
  });
}

}  // namespace ddprun::worker
