// A world of one rank on one GPU, and what tests train there. Without a GPU they are skipped, with
// the reason.
#pragma once

#include <ddprun/process.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/utils.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/worker/training/data_parallel/counting_collective.h"
#include "worker/collective/nccl/nccl_collective.h"
#include "worker/startup/pipe_exchange.h"

namespace ddprun::worker {

class OneGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
    PipeExchange exchange(1);
    auto joined = join_nccl({.timeout = std::chrono::seconds(60)}, exchange);
    ASSERT_TRUE(joined) << joined.error().message();
    ranks_ = std::move(*joined);
  }

  Collective& ranks() { return *ranks_; }

 private:
  std::unique_ptr<Collective> ranks_;
};

// Says that there is a second rank, which has the same model and brings nothing. Sums over both are
// those of the one that is there. So what ranks do that are not alone runs on one GPU.
class BesideARankWithoutSamples final : public PassingCollective {
 public:
  using PassingCollective::PassingCollective;
  int world_size() const override { return 2; }
  std::vector<std::vector<std::byte>> all_gather_bytes(std::span<const std::byte> mine) override {
    return {{mine.begin(), mine.end()}, {mine.begin(), mine.end()}};
  }
};

// The same weights each time.
inline torch::nn::Sequential small_net(at::Device device = at::kCUDA) {
  torch::manual_seed(3);
  torch::nn::Sequential net(torch::nn::Linear(20, 30), torch::nn::Tanh(), torch::nn::Linear(30, 30),
                            torch::nn::Tanh(), torch::nn::Linear(30, 4));
  net->to(device);
  return net;
}

inline at::Tensor samples_of(int pass) {
  torch::manual_seed(static_cast<std::uint64_t>(100 + pass));
  return torch::randn({16, 20}).to(at::kCUDA);
}

inline at::Tensor loss_of(const at::Tensor& output) { return output.to(at::kFloat).pow(2).mean(); }

// Both must lie on the GPU.
inline double distance(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_TRUE(a.is_cuda() && b.is_cuda());
  EXPECT_EQ(a.sizes(), b.sizes());
  return (a.detach().to(at::kDouble) - b.detach().to(at::kDouble)).abs().max().item<double>();
}

}  // namespace ddprun::worker
