// Passes under NoSync: nothing travels, and the sum that follows is that of all micro-batches.
#include <ddprun/data_parallel.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <optional>
#include <vector>

#include "tests/worker/torch_ranks.h"
#include "tests/worker/training/data_parallel/counting_collective.h"

namespace ddprun::worker {
namespace {

constexpr int kSilent = 4;  // passes under NoSync, before one that sums
constexpr std::int64_t kRows = 8;

// Whole numbers: their products and sums have no rounding, in whatever order they are added.
at::Tensor micro_batch(int rank, int part) {
  torch::manual_seed(100 * rank + part);
  return torch::randint(-8, 8, {kRows, 6}).to(torch::kFloat);
}

torch::nn::Linear whole_net() {
  torch::nn::Linear net(6, 3);
  const torch::NoGradGuard no_grad;
  torch::manual_seed(1);
  for (const at::Tensor& weight : net->parameters())
    at::Tensor(weight).copy_(torch::randint(-4, 4, weight.sizes()));
  return net;
}

// PyTorch's rule: what has accumulated is divided by the ranks, and not by the passes.
at::Tensor loss_of(const at::Tensor& out) { return (out * out).sum() / 8; }

std::vector<at::Tensor> gradients_of(const torch::nn::Linear& net) {
  return {net->weight.grad().clone(), net->bias.grad().clone()};
}

// Case 13.
TEST(NoSync, FourTimesAndASumAreOnePassOverAllMicroBatches) {
  for (const bool view : {true, false}) {
    run_torch_ranks(2, [view](Collective& inner) {
      CountingCollective collective(inner);
      auto net = whole_net();
      DataParallel parallel(net.ptr(), collective, {.gradient_as_bucket_view = view});
      std::vector<at::Tensor> all;
      for (int part = 0; part <= kSilent; ++part)
        all.push_back(micro_batch(collective.rank(), part));
      for (int round = 0; round < 3; ++round) {
        net->zero_grad();
        const int calls = collective.calls;
        for (int part = 0; part < kSilent; ++part) {
          const auto no_sync = parallel.no_sync();
          loss_of(parallel.forward(net, all[static_cast<std::size_t>(part)])).backward();
          EXPECT_EQ(collective.calls, calls) << "round " << round << ", pass " << part;
        }
        loss_of(parallel.forward(net, all.back())).backward();
        const auto in_parts = gradients_of(net);
        net->zero_grad();
        loss_of(parallel.forward(net, torch::cat(all))).backward();
        const auto at_once = gradients_of(net);
        for (std::size_t i = 0; i < at_once.size(); ++i)
          EXPECT_TRUE(torch::equal(in_parts[i], at_once[i])) << "round " << round;
      }
    });
  }
}

// Case 14.
TEST(Buffers, AreNotSentAfterAPassUnderNoSync) {
  run_torch_ranks(2, [](Collective& inner) {
    CountingCollective collective(inner);
    torch::nn::Sequential net(torch::nn::BatchNorm1d(2));
    DataParallel parallel(net.ptr(), collective);
    const auto broadcasts_of_a_pass = [&](bool silent) {
      std::optional<DataParallel::NoSync> no_sync;
      if (silent) no_sync.emplace(parallel);
      const int before = collective.broadcasts;
      parallel.forward(net, torch::randn({8, 2})).sum().backward();
      return collective.broadcasts - before;
    };
    EXPECT_EQ(broadcasts_of_a_pass(false), 1);
    EXPECT_EQ(broadcasts_of_a_pass(true), 1) << "the pass before has summed";
    EXPECT_EQ(broadcasts_of_a_pass(true), 0);
    EXPECT_EQ(broadcasts_of_a_pass(false), 0);
    EXPECT_EQ(broadcasts_of_a_pass(false), 1);
  });
}

}  // namespace
}  // namespace ddprun::worker
