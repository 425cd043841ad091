// A step of a large parameter is made part by part. It has the bits of a step of small ones, which
// is not. (Small ones of a power of two. LibTorch rounds the last few numbers of a 16-bit tensor in
// another way than the others.)
#include "worker/training/zero/blocks.h"

#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <ddprun/optimizers.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace ddprun::worker {
namespace {

constexpr std::int64_t kLarge = 2 * kBlockNumbers + 1003;

class Blocks : public testing::Test {
 protected:
  Blocks() { at::set_num_threads(1); }
  ~Blocks() override { at::set_num_threads(threads_); }

 private:
  int threads_ = at::get_num_threads();
};

// Sees the largest piece of memory that LibTorch asks for.
class LargestPiece final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*data*/, std::int64_t size, std::size_t /*allocated*/,
                         std::size_t /*reserved*/, c10::Device /*device*/) override {
    bytes = std::max(bytes, size);
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::int64_t bytes = 0;
};

// Another rounding shows in these, and so does the sign of a zero.
at::Tensor bits_of(const at::Tensor& numbers) { return numbers.view(at::kByte); }

// Numbers with a fixed seed, and three steps on them with other gradients each. The result is of
// one dimension.
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
  EXPECT_TRUE(torch::equal(bits_of(small), bits_of(large))) << (small - large).abs().max();
}

TEST_F(Blocks, SgdHasTheSameBits) {
  expect_same_bits<SGD>(SGD::Options(0.1));
  expect_same_bits<SGD>(SGD::Options(0.1).momentum(0.9).dampening(0.1));
  expect_same_bits<SGD>(SGD::Options(0.1).momentum(0.9).weight_decay(0.01).nesterov(true));
  expect_same_bits<SGD>(SGD::Options(0.1).momentum(0.9), at::kBFloat16);
}

TEST_F(Blocks, AdamHasTheSameBits) {
  expect_same_bits<Adam>(Adam::Options(0.1));
  expect_same_bits<Adam>(Adam::Options(0.1).weight_decay(0.01).amsgrad(true));
  expect_same_bits<AdamW>(AdamW::Options(0.1).weight_decay(0.01));
  expect_same_bits<Adam>(Adam::Options(0.1), at::kComplexFloat);
}

template <typename Optimizer>
std::int64_t largest_piece_of_a_step(const typename Optimizer::Options& options) {
  const auto parameter = torch::ones({16 * kBlockNumbers}).requires_grad_(true);
  parameter.mutable_grad() = torch::ones({16 * kBlockNumbers});
  Optimizer optimizer(std::vector{parameter}, options);
  optimizer.step();  // makes the state
  const auto largest = std::make_shared<LargestPiece>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, largest);
  optimizer.step();
  return largest->bytes;
}

TEST_F(Blocks, AStepNeedsNoMemoryOfTheParametersSize) {
  constexpr auto kPart = kBlockNumbers * static_cast<std::int64_t>(sizeof(float));
  EXPECT_EQ(largest_piece_of_a_step<SGD>(SGD::Options(1).momentum(0.9).weight_decay(1)), kPart);
  EXPECT_EQ(largest_piece_of_a_step<Adam>(Adam::Options(1)), kPart);
  EXPECT_EQ(largest_piece_of_a_step<AdamW>(AdamW::Options(1)), kPart);
}

TEST_F(Blocks, AmsgradCannotBeginLater) {
  const auto parameter = torch::ones({2}).requires_grad_(true);
  parameter.mutable_grad() = torch::ones({2});
  Adam optimizer(std::vector{parameter}, Adam::Options(1));
  optimizer.step();
  static_cast<Adam::Options&>(optimizer.param_groups()[0].options()).amsgrad(true);
  EXPECT_THROW(optimizer.step(), std::invalid_argument);
}

// Returns the arguments of in_blocks()'s calls: the first number of each call's tensors, and how
// many.
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

TEST_F(Blocks, CutsWhatLiesInMemoryAlike) {
  using Calls = std::vector<std::vector<std::int64_t>>;
  constexpr std::int64_t kB = kBlockNumbers;
  const at::Tensor row = torch::arange(kLarge);
  EXPECT_EQ(calls_of({row, row + 7}),
            (Calls{{kB, 0, kB, 7}, {kB, kB, kB, kB + 7}, {1003, 2 * kB, 1003, 2 * kB + 7}}));
  EXPECT_EQ(calls_of({row.narrow(0, 5, kB + 1), {}}), (Calls{{kB, 5, 0}, {1, kB + 5, 0}}));
  // Transposed alike: parts in the order of memory.
  const at::Tensor table = torch::arange(2 * kB).view({2, kB});
  EXPECT_EQ(calls_of({table.t(), table.t()}), (Calls{{kB, 0, kB, 0}, {kB, kB, kB, kB}}));
}

TEST_F(Blocks, LeavesAllToSeveralThreads) {
  const at::Tensor row = torch::arange(kLarge);
  at::set_num_threads(2);
  EXPECT_EQ(calls_of({row, row}).size(), 1U);
  at::set_num_threads(1);
  EXPECT_EQ(calls_of({row, row}).size(), 3U);
}

TEST_F(Blocks, LeavesWhatIsSmallOrLiesUnlike) {
  const at::Tensor table = torch::arange(2 * kBlockNumbers).view({2, kBlockNumbers});
  EXPECT_EQ(calls_of({table, table.t().contiguous().t()}).size(), 1U);
  const at::Tensor gaps = torch::arange(4 * kBlockNumbers).slice(0, 0, 4 * kBlockNumbers, 2);
  EXPECT_EQ(calls_of({gaps, gaps}).size(), 1U);
  EXPECT_EQ(calls_of({table.narrow(0, 0, 1), {}}).size(), 1U);
}

}  // namespace
}  // namespace ddprun::worker
