// The tensors that an optimizer steps, of all its groups: LibTorch's optimizers, ours, and ZeroOptimizer have them alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace ddprun::worker {

template <typename Optimizer>
std::vector<at::Tensor> stepped_tensors(Optimizer& optimizer) {
  std::vector<at::Tensor> tensors;
  for (auto& group : optimizer.param_groups())
    tensors.insert(tensors.end(), group.params().begin(), group.params().end());
  return tensors;
}

}  // namespace ddprun::worker
