// Single costs of the engine, of one rank among some: the start, the host's time for a sum, and
// SyncBatchNorm. bench/costs_torch.py measures the same of PyTorch. A step with Adam and one with
// ZeroOptimizer are measured here alone. scripts/gpu_kit runs both.
// Started by ddprun:
//   bench-costs [--device=cpu|cuda]
// Rank 0 prints a line `name value` for each.
#include <ATen/Parallel.h>
#include <ddprun/data_parallel.h>
#include <ddprun/optimizers.h>
#include <ddprun/process.h>
#include <ddprun/sync_batch_norm.h>
#include <ddprun/zero_optimizer.h>
#include <fmt/format.h>
#include <torch/cuda.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/median.h"

namespace ddprun::bench {
namespace {

constexpr std::size_t kElements = 1 << 18;  // 1 MiB
constexpr int kSums = 50;                   // whose host times count at once
constexpr int kRounds = 20;
constexpr int kNormSteps = 20;
constexpr int kSteps = 10;

void synchronize(const Collective& ranks) {
  if (ranks.device() == Device::kCuda) torch::cuda::synchronize();
}

void sum(Collective& ranks, const std::shared_ptr<std::byte>& memory) {
  ranks.wait(ranks.launch_sum({memory.get(), kElements, Dtype::kFloat32}));
}

// The host's microseconds for a launch and its wait. On a GPU neither waits for the sum.
double microseconds_of_a_sum(Collective& ranks) {
  const auto memory = ranks.allocate(kElements * sizeof(float));
  double fastest = 0;
  for (int round = 0; round < kRounds; ++round) {
    synchronize(ranks);
    ranks.barrier();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kSums; ++i) sum(ranks, memory);
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    fastest = round == 0 ? took.count() : std::min(fastest, took.count());
  }
  synchronize(ranks);
  return fastest / kSums;
}

// Milliseconds of forward and backward. The sizes are those of a block of ResNet-50.
double milliseconds_of_norm(Collective& ranks) {
  const bool on_gpu = ranks.device() == Device::kCuda;
  SyncBatchNorm norm(torch::nn::BatchNormOptions(on_gpu ? 256 : 8), ranks);
  norm->to(on_gpu ? at::kCUDA : at::kCPU);
  const std::vector<std::int64_t> shape =
      on_gpu ? std::vector<std::int64_t>{32, 256, 28, 28} : std::vector<std::int64_t>{4, 8, 8, 8};
  const auto inputs = torch::randn(shape, on_gpu ? at::kCUDA : at::kCPU).requires_grad_();
  return 1e3 * median_seconds(3, kNormSteps, [&] {
           inputs.mutable_grad().reset();
           norm->forward(inputs).square().sum().backward();
           synchronize(ranks);
         });
}

// A net whose gradients are summed, and an optimizer. On a GPU it has 100 MB.
class Trainer {
 public:
  Trainer(Collective& ranks, bool shards_state) : ranks_(ranks) {
    const bool on_gpu = ranks.device() == Device::kCuda;
    const std::int64_t width = on_gpu ? 1770 : 32;
    for (int layer = 0; layer < 8; ++layer)
      net_->push_back(torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(false)));
    net_->to(on_gpu ? at::kCUDA : at::kCPU);
    inputs_ = torch::randn({64, width}, on_gpu ? at::kCUDA : at::kCPU);
    parallel_.emplace(net_.ptr(), ranks);
    if (!shards_state) {
      adam_.emplace(net_->parameters(), Adam::Options(1e-3));
      return;
    }
    zero_.emplace(net_->parameters(), ranks, Adam::Options(1e-3));
    zero_->reduce_scatter(*parallel_);
  }

  double milliseconds() {
    return 1e3 * median_seconds(3, kSteps, [&] {
             if (zero_) step(*zero_);
             if (adam_) step(*adam_);
             synchronize(ranks_);
           });
  }

 private:
  template <typename Optimizer>
  void step(Optimizer& optimizer) {
    optimizer.zero_grad();
    parallel_->forward(net_, inputs_).square().mean().backward();
    parallel_->step(optimizer);
  }

  Collective& ranks_;
  torch::nn::Sequential net_;
  at::Tensor inputs_;
  std::optional<DataParallel> parallel_;
  std::optional<Adam> adam_;
  std::optional<ZeroOptimizer<Adam>> zero_;
};

int run(Device device) {
  at::set_num_threads(1);
  const auto start = std::chrono::steady_clock::now();
  const Process process = bootstrap({.device = device});
  Collective& ranks = *process.collective;
  sum(ranks, ranks.allocate(kElements * sizeof(float)));
  synchronize(ranks);
  const std::chrono::duration<double> start_s = std::chrono::steady_clock::now() - start;
  const double sum_us = microseconds_of_a_sum(ranks);
  const double norm_ms = milliseconds_of_norm(ranks);
  const double adam_ms = Trainer(ranks, false).milliseconds();
  const double zero_ms = Trainer(ranks, true).milliseconds();
  ranks.barrier();
  if (process.world.rank == 0)
    fmt::print("start_s {:.4f}\nsum_us {:.3f}\nnorm_ms {:.4f}\nadam_ms {:.4f}\nzero_ms {:.4f}\n",
               start_s.count(), sum_us, norm_ms, adam_ms, zero_ms);
  return 0;
}

}  // namespace
}  // namespace ddprun::bench

int main(int argc, char** argv) {
  const std::string device = argc == 2 ? argv[1] : "--device=cpu";
  if (argc > 2 || (device != "--device=cpu" && device != "--device=cuda")) {
    fmt::print(stderr, "usage: bench-costs [--device=cpu|cuda]\n");
    return 2;
  }
  try {
    return ddprun::bench::run(device == "--device=cuda" ? ddprun::Device::kCuda
                                                        : ddprun::Device::kCpu);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench-costs: {}\n", error.what());
    return 1;
  }
}
