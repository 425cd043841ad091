// Samples that need no file: for examples whose idea is not in their data. The training thread.
#pragma once

#include <ddprun/tensor_dataset.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cstdint>

namespace ddprun::examples {

inline constexpr std::int64_t kMadeNumbers = 20, kMadeClasses = 10;

// Rows of 20 random numbers; the class of one says which of the first 10 is the largest. Equal
// seeds give equal samples, those of made_set() in examples/pytorch/twin.py.
inline TensorDataset made_set(std::uint64_t seed, std::int64_t count) {
  torch::manual_seed(seed);
  const auto inputs = torch::randn({count, kMadeNumbers});
  return {inputs, inputs.narrow(1, 0, kMadeClasses).argmax(1)};
}

// A net for them, with the same weights on all ranks: that of made_net() there.
inline torch::nn::Sequential made_net(int hidden_layers, std::int64_t width) {
  torch::manual_seed(1);
  torch::nn::Sequential net;
  for (int layer = 0; layer < hidden_layers; ++layer) {
    net->push_back(torch::nn::Linear(layer == 0 ? kMadeNumbers : width, width));
    net->push_back(torch::nn::ReLU());
  }
  net->push_back(torch::nn::Linear(width, kMadeClasses));
  return net;
}

}  // namespace ddprun::examples
