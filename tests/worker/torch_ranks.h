// Forked ranks that use LibTorch, and a small model for them.
#pragma once

#include <ddprun/tensor_collective.h>
#include <torch/nn.h>

#include <string>

#include "tests/worker/forked_ranks.h"

namespace ddprun::worker {

// Two weights in a chain, one more that takes part when asked.
struct ChainImpl : torch::nn::Module {
  explicit ChainImpl(std::int64_t width = 4) {
    first = register_parameter("first", torch::ones(width));
    second = register_parameter("second", torch::ones(width));
    rare = register_parameter("rare", torch::ones(width));
  }
  torch::Tensor forward(const torch::Tensor& x, bool with_rare = true) {
    const auto y = x * first * second;
    return with_rare ? y * rare : y;
  }
  torch::Tensor first, second, rare;
};
TORCH_MODULE(Chain);

// Ranks for tests of LibTorch: one thread each.
inline void run_torch_ranks(const RanksOptions& options, const RankBody& body) {
  run_ranks(options, [&body](Collective& collective) {
    at::set_num_threads(1);
    body(collective);
  });
}
inline void run_torch_ranks(int ranks, const RankBody& body) {
  run_torch_ranks({.ranks = ranks}, body);
}

// All ranks must call it.
inline void expect_equal_on_all_ranks(const at::Tensor& tensor, Collective& ranks,
                                      const std::string& name = "") {
  TensorCollective tensors(ranks);
  for (const at::Tensor& theirs : tensors.all_gather(tensor.detach()))
    EXPECT_TRUE(torch::equal(theirs, tensor)) << name;
}

inline float first_of(const at::Tensor& tensor) { return tensor.flatten()[0].item<float>(); }

}  // namespace ddprun::worker
