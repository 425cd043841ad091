// Steps of ShardedParallel with Adam on layers of one width, each of them a unit. bench/sharded
// runs it beside bench/sharded_torch.py, which does the same with fully_shard. Started by ddprun:
//
//   bench-sharded LAYERS WIDTH BATCH STEPS
//
// Rank 0 prints the median seconds of a step and its loss in the last one.
#include <ATen/Parallel.h>
#include <ddprun/optimizers.h>
#include <ddprun/process.h>
#include <ddprun/sharded_parallel.h>
#include <fmt/format.h>
#include <torch/nn.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace ddprun;  // NOLINT(google-build-using-namespace)

constexpr int kWarmUps = 3;

struct Work {
  int layers;
  int width;
  int batch;
  int steps;
};

struct Done {
  double seconds;
  double loss;
};

Done train(const Work& work, Collective& ranks) {
  torch::manual_seed(1);
  torch::nn::Sequential net;
  std::vector<torch::nn::Linear> layers;
  std::vector<std::string> units;
  for (int i = 0; i < work.layers; ++i) {
    layers.emplace_back(work.width, work.width);
    net->push_back(layers.back());
    units.push_back(std::to_string(i));
  }
  ShardedParallel sharded(net.ptr(), ranks, units);
  Adam optimizer(sharded.shards(), Adam::Options(1e-4));
  torch::manual_seed(2 + ranks.rank());
  const auto batch = torch::randn({work.batch, work.width});
  std::vector<double> seconds;
  double loss_of_last = 0;
  for (int i = 0; i < kWarmUps + work.steps; ++i) {
    ranks.barrier();
    const auto start = std::chrono::steady_clock::now();
    optimizer.zero_grad();
    at::Tensor x = batch;
    for (auto& layer : layers) x = torch::tanh(sharded.forward(layer, x));
    const auto loss = x.square().mean();
    loss.backward();
    sharded.step(optimizer);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (i >= kWarmUps) seconds.push_back(took.count());
    loss_of_last = loss.item<double>();
  }
  const auto middle = seconds.begin() + work.steps / 2;
  std::nth_element(seconds.begin(), middle, seconds.end());
  return {*middle, loss_of_last};
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() != 4) {
    fmt::print(stderr, "bench-sharded: expected LAYERS, WIDTH, BATCH and STEPS\n");
    return 2;
  }
  try {
    at::set_num_threads(1);
    const Process process = bootstrap();
    const Done done =
        train({std::stoi(words[0]), std::stoi(words[1]), std::stoi(words[2]), std::stoi(words[3])},
              *process.collective);
    if (process.world.rank == 0) fmt::print("{:.6f} {:.9f}\n", done.seconds, done.loss);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench-sharded: {}\n", error.what());
    return 1;
  }
  return 0;
}
