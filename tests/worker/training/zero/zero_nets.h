// A small net, its training, and the comparison of two, for tests of ZeroOptimizer.
#pragma once

#include <ddprun/data_parallel.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <cstdint>

namespace ddprun::worker {

inline torch::nn::Sequential layered_net(std::int64_t width = 8) {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(4, width), torch::nn::Tanh(),
                               torch::nn::Linear(width, width), torch::nn::Tanh(),
                               torch::nn::Linear(width, 2));
}

inline void train_steps(torch::nn::Sequential& net, DataParallel& parallel,
                        torch::optim::Optimizer& optimizer, int begin, int end) {
  for (int step = begin; step < end; ++step) {
    optimizer.zero_grad();
    torch::manual_seed(100 * step + parallel.join_ranks().rank());
    parallel.forward(net, torch::randn({5, 4})).square().mean().backward();
    parallel.step(optimizer);
  }
}

inline void expect_same_weights(const torch::nn::Module& ours, const torch::nn::Module& theirs) {
  for (const auto& parameter : theirs.named_parameters())
    EXPECT_TRUE(torch::equal(ours.named_parameters()[parameter.key()], parameter.value()))
        << parameter.key();
}

}  // namespace ddprun::worker
