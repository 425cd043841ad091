// SGD, Adam and AdamW with the bits of Python's torch.optim, of PyTorch 2.11 on CPU. See
// _single_tensor_sgd and _single_tensor_adam in torch/optim/sgd.py and adam.py. LibTorch's own have
// other last bits. They are LibTorch's optimizers otherwise: options, state and checkpoints are
// theirs. One thread.
#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

namespace ddprun::worker {

class SGD final : public torch::optim::SGD {
 public:
  using Options = torch::optim::SGDOptions;
  using torch::optim::SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override;
};

// Throws std::invalid_argument for sparse gradients, and where amsgrad is turned on after a step,
// as Python's do.
class Adam final : public torch::optim::Adam {
 public:
  using Options = torch::optim::AdamOptions;
  using torch::optim::Adam::Adam;
  at::Tensor step(LossClosure closure = nullptr) override;
};

class AdamW final : public torch::optim::AdamW {
 public:
  using Options = torch::optim::AdamWOptions;
  using torch::optim::AdamW::AdamW;
  at::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace ddprun::worker
