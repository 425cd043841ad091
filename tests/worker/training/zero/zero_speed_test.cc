// How long a step of ZeroOptimizer takes beside that of a whole Adam.
#include <ddprun/data_parallel.h>
#include <ddprun/zero_optimizer.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <type_traits>
#include <vector>

#include "tests/worker/torch_ranks.h"

namespace ddprun::worker {
namespace {

// A training of 100 MB of parameters, and how long its steps take.
template <typename Optimizer>
class LargeTraining {
 public:
  explicit LargeTraining(Collective& ranks)
      : ranks_(ranks), net_(made()), parallel_(net_.ptr(), ranks), optimizer_(made_optimizer()) {}

  void step() {
    optimizer_->zero_grad();
    const auto loss = parallel_.forward(net_, torch::ones({1, 1000})).sum();
    ranks_.barrier();
    const auto begin = std::chrono::steady_clock::now();
    loss.backward();
    parallel_.step(*optimizer_);
    ranks_.barrier();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    times_.push_back(took.count());
  }

  double median_ms() {
    std::ranges::sort(times_);
    return times_[times_.size() / 2];
  }

 private:
  static torch::nn::Sequential made() {
    torch::nn::Sequential net;
    for (int layer = 0; layer < 25; ++layer) net->push_back(torch::nn::Linear(1000, 1000));
    return net;
  }

  std::unique_ptr<Optimizer> made_optimizer() {
    if constexpr (std::is_same_v<Optimizer, Adam>) {
      return std::make_unique<Adam>(net_->parameters(), Adam::Options(1e-5));
    } else {
      auto made = std::make_unique<Optimizer>(net_->parameters(), ranks_, Adam::Options(1e-5));
      made->reduce_scatter(parallel_);
      return made;
    }
  }

  Collective& ranks_;
  torch::nn::Sequential net_;
  DataParallel parallel_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<double> times_;
};

// In turn, so that what else the machine does slows both. The bound leaves room for that.
TEST(ZeroOptimizer, StepsNoSlowerThanAllReduceAndAWholeAdam) {
  run_torch_ranks(2, [](Collective& collective) {
    LargeTraining<Adam> whole(collective);
    LargeTraining<ZeroOptimizer<Adam>> sharded(collective);
    for (int round = 0; round < 7; ++round) {
      whole.step();
      sharded.step();
    }
    if (collective.rank() == 0) {
      std::printf(
          "backward and step, 100 MB, 2 ranks: all-reduce and Adam %.1f ms, reduce_scatter and a "
          "shard of Adam %.1f ms\n",
          whole.median_ms(), sharded.median_ms());
    }
    EXPECT_LE(sharded.median_ms(), 1.2 * whole.median_ms());
  });
}

}  // namespace
}  // namespace ddprun::worker
