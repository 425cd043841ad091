// A net for images, whichever it is.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

namespace ddprun::examples {

struct ConvNet : torch::nn::Module {
  // From images [batch, 3, side, side] to scores [batch, classes].
  virtual torch::Tensor forward(torch::Tensor images) = 0;
};

}  // namespace ddprun::examples
