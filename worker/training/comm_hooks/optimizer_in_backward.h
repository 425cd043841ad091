// An optimizer that steps in backward(), parameter by parameter:
//
//   parallel.step_in_backward(
//       optimizer_in_backward<torch::optim::SGD>(*net, torch::optim::SGDOptions(0.01)));
//   …
//   loss.backward();  // the gradients are summed, used and let go when it returns
//
// Gradients of the whole model are never there at once. Memory is saved, and a step overlaps with
// the sums that are still under way. The weights are those of one optimizer over all parameters.
// The optimizer must treat each parameter alone, as all of LibTorch but LBFGS do.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <unordered_map>
#include <vector>

#include "worker/training/data_parallel/bucket.h"

namespace ddprun::worker {

// One Optimizer for each parameter that needs a gradient. They live as long as the result.
template <typename Optimizer, typename Options>
ParameterStep optimizer_in_backward(const torch::nn::Module& module, const Options& options) {
  using Optimizers = std::unordered_map<const at::TensorImpl*, std::unique_ptr<Optimizer>>;
  const auto optimizers = std::make_shared<Optimizers>();
  for (const at::Tensor& parameter : module.parameters()) {
    if (!parameter.requires_grad()) continue;
    optimizers->emplace(parameter.unsafeGetTensorImpl(),
                        std::make_unique<Optimizer>(std::vector<at::Tensor>{parameter}, options));
  }
  return [optimizers](at::Tensor& parameter) {
    optimizers->at(parameter.unsafeGetTensorImpl())->step();
  };
}

}  // namespace ddprun::worker
