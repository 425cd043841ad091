// A step of a large parameter, which is made part by part, has the bits of a step of small ones, which is not. (Small
// ones of a power of two: LibTorch rounds the last few numbers of a 16-bit tensor in another way than the others.)
#include "worker/zero/blocks.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "worker/zero/optimizers.h"

namespace ddprun::worker {
namespace {

constexpr std::int64_t kLarge = 2 * kBlockNumbers + 1003;

// Numbers with a fixed seed, and three steps on them with other gradients each. The result is of one dimension.
template <typename Optimizer>
at::Tensor stepped(const typename Optimizer::Options& options, std::int64_t part,
                   at::ScalarType type = at::kFloat) {
  torch::manual_seed(1);
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& numbers : torch::randn({kLarge}, type).split(part))
    parameters.push_back(numbers.clone().requires_grad_(true));
  Optimizer optimizer(parameters, options);
  for (int step = 0; step < 3; ++step) {
    const auto gradients = torch::randn({kLarge}, type).split(part);
    for (std::size_t i = 0; i < parameters.size(); ++i)
      parameters[i].mutable_grad() = gradients[i].clone();
    optimizer.step();
  }
  return torch::cat(parameters).detach();
}

template <typename Optimizer>
void expect_same_bits(const typename Optimizer::Options& options,
                      at::ScalarType type = at::kFloat) {
  const at::Tensor small = stepped<Optimizer>(options, 8192, type);
  const at::Tensor large = stepped<Optimizer>(options, kLarge, type);
  EXPECT_TRUE(torch::equal(small, large)) << (small - large).abs().max();
}

TEST(Blocks, SgdHasTheSameBits) {
  expect_same_bits<SGD>(SGD::Options(0.1));
  expect_same_bits<SGD>(SGD::Options(0.1).momentum(0.9).dampening(0.1));
  expect_same_bits<SGD>(SGD::Options(0.1).momentum(0.9).weight_decay(0.01).nesterov(true));
  expect_same_bits<SGD>(SGD::Options(0.1).momentum(0.9), at::kBFloat16);
}

TEST(Blocks, AdamHasTheSameBits) {
  expect_same_bits<Adam>(Adam::Options(0.1));
  expect_same_bits<Adam>(Adam::Options(0.1).weight_decay(0.01).amsgrad(true));
  expect_same_bits<AdamW>(AdamW::Options(0.1).weight_decay(0.01));
  expect_same_bits<Adam>(Adam::Options(0.1), at::kComplexFloat);
}

// What in_blocks() calls its function with: the first number of each call's tensors, and how many.
std::vector<std::vector<std::int64_t>> calls_of(const std::array<at::Tensor, 2>& tensors) {
  std::vector<std::vector<std::int64_t>> calls;
  in_blocks(tensors, [&](const std::array<at::Tensor, 2>& parts) {
    calls.emplace_back();
    for (const at::Tensor& part : parts) {
      calls.back().push_back(part.defined() ? part.numel() : 0);
      if (part.defined()) calls.back().push_back(part.flatten()[0].item<std::int64_t>());
    }
  });
  return calls;
}

TEST(Blocks, CutsWhatLiesInMemoryAlike) {
  using Calls = std::vector<std::vector<std::int64_t>>;
  constexpr std::int64_t kB = kBlockNumbers;
  const at::Tensor row = torch::arange(kLarge);
  EXPECT_EQ(calls_of({row, row + 7}),
            (Calls{{kB, 0, kB, 7}, {kB, kB, kB, kB + 7}, {1003, 2 * kB, 1003, 2 * kB + 7}}));
  EXPECT_EQ(calls_of({row.narrow(0, 5, kB + 1), {}}), (Calls{{kB, 5, 0}, {1, kB + 5, 0}}));
  // Transposed alike: parts in the order of memory.
  const at::Tensor table = torch::arange(2 * kB).view({2, kB});
  EXPECT_EQ(calls_of({table.t(), table.t()}).size(), 2U);
}

TEST(Blocks, LeavesWhatIsSmallOrLiesUnlike) {
  const at::Tensor table = torch::arange(2 * kBlockNumbers).view({2, kBlockNumbers});
  EXPECT_EQ(calls_of({table, table.t().contiguous().t()}).size(), 1U);
  const at::Tensor gaps = torch::arange(4 * kBlockNumbers).slice(0, 0, 4 * kBlockNumbers, 2);
  EXPECT_EQ(calls_of({gaps, gaps}).size(), 1U);
  EXPECT_EQ(calls_of({table.narrow(0, 0, 1), {}}).size(), 1U);
}

}  // namespace
}  // namespace ddprun::worker
