// SGD, Adam and AdamW with the bits of Python's torch.optim, of PyTorch 2.11 on CPU. See
// _single_tensor_sgd and _single_tensor_adam in torch/optim/sgd.py and adam.py. LibTorch's own have
// other last bits. On CUDA they are those of Python's with fused=True: one kernel steps all
// parameters of a group and dtype. Parameters that it does not take are stepped one by one. These
// are complex ones, and those whose gradient lies in memory in another way. They are LibTorch's
// optimizers otherwise: options, state and checkpoints are theirs, on each device. One thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <ddprun/collective.h>
#include <ddprun/comm_hook.h>
#include <torch/nn/module.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <unordered_map>
#include <vector>

namespace ddprun {

// Python's SGD.
class SGD final : public torch::optim::SGD {
 public:
  // LibTorch's: learning rate, momentum, weight decay.
  using Options = torch::optim::SGDOptions;
  // Takes parameters or groups of them, and options, as LibTorch's.
  using torch::optim::SGD::SGD;
  // Steps each parameter that has a gradient. Returns the closure's loss, if there is one. This
  // rank alone.
  at::Tensor step(LossClosure closure = nullptr) override;
};

// Python's Adam.
class Adam final : public torch::optim::Adam {
 public:
  // LibTorch's: learning rate, betas, epsilon, weight decay, amsgrad.
  using Options = torch::optim::AdamOptions;
  // Takes parameters or groups of them, and options, as LibTorch's.
  using torch::optim::Adam::Adam;
  // Steps each parameter that has a gradient. Returns the closure's loss, if there is one. Throws
  // std::invalid_argument for sparse gradients, and where amsgrad is turned on after a step, as
  // Python's does. This rank alone.
  at::Tensor step(LossClosure closure = nullptr) override;
};

// Python's AdamW: Adam with decoupled weight decay.
class AdamW final : public torch::optim::AdamW {
 public:
  // LibTorch's: learning rate, betas, epsilon, weight decay, amsgrad.
  using Options = torch::optim::AdamWOptions;
  // Takes parameters or groups of them, and options, as LibTorch's.
  using torch::optim::AdamW::AdamW;
  // Steps each parameter that has a gradient. Returns the closure's loss, if there is one. Throws
  // as Adam's does. This rank alone.
  at::Tensor step(LossClosure closure = nullptr) override;
};

// Makes an optimizer that steps in backward(), parameter by parameter:
//
//   parallel.step_in_backward(
//       optimizer_in_backward<torch::optim::SGD>(*net, torch::optim::SGDOptions(0.01)));
//   …
//   loss.backward();  // the gradients are summed, used and let go when it returns
//
// Gradients of the whole model are never there at once. Memory is saved, and a step overlaps with
// the sums that are still under way. The weights are those of one optimizer over all parameters.
// The optimizer must treat each parameter alone, as all of LibTorch but LBFGS do.
//
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

// Returns the tensors that an optimizer steps, of all its groups. They are its own, not copies.
// LibTorch's optimizers, ours, and ZeroOptimizer have them alike.
template <typename Optimizer>
std::vector<at::Tensor> stepped_tensors(Optimizer& optimizer) {
  std::vector<at::Tensor> tensors;
  for (auto& group : optimizer.param_groups())
    tensors.insert(tensors.end(), group.params().begin(), group.params().end());
  return tensors;
}

// Scales the gradients of these parameters so that the norm over all of them is `max_norm` at most.
// Call it behind backward(), and behind GradScaler::unscale(). It is Python's clip_grad_norm_() of
// torch.nn.utils, with its bits if the gradients have one dtype. They must be dense. `norm_type`:
// the order of the norm, also infinity. Returns the norm from before, on the device of the first
// gradient. The host waits for no GPU until it reads that. This rank alone. All ranks hold the same
// averages, so they clip alike. It does not go with ZeroOptimizer::reduce_scatter().
at::Tensor clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm,
                          double norm_type = 2.0);

// Gives rank `root`'s state to all ranks: momenta, counts of steps, and options like the learning
// rate. Ranks that come later need it (DataParallel::resize). All must call it, with optimizers of
// one kind over the same parameters, on the training thread. Errors are CollectiveError, or
// LibTorch's where the optimizers differ.
void share_optimizer_state(torch::optim::Optimizer& optimizer, Collective& collective,
                           int root = 0);

}  // namespace ddprun
