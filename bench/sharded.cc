// Steps of layers of one width with Adam. MODE is sharded, whole or zero. sharded: ShardedParallel,
// each layer a unit. whole: DataParallel. zero: DataParallel and ZeroOptimizer, with
// reduce_scatter(). bench/sharded runs it. bench/sharded_torch.py does what the first one does,
// with fully_shard. Started by ddprun:
//
//   bench-sharded MODE LAYERS WIDTH BATCH STEPS
//
// Rank 0 prints the median seconds of a step and its loss in the last one.
#include <ATen/Parallel.h>
#include <ddprun/data_parallel.h>
#include <ddprun/optimizers.h>
#include <ddprun/process.h>
#include <ddprun/sharded_parallel.h>
#include <ddprun/zero_optimizer.h>
#include <fmt/format.h>
#include <torch/nn.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <map>
#include <string>
#include <vector>

namespace {

using namespace ddprun;  // NOLINT(google-build-using-namespace)

constexpr int kWarmUps = 3;
constexpr double kRate = 1e-4;

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

struct Net {
  torch::nn::Sequential all;
  std::vector<torch::nn::Linear> layers;
  std::vector<std::string> names;

  explicit Net(const Work& work) {
    torch::manual_seed(1);
    for (int i = 0; i < work.layers; ++i) {
      layers.emplace_back(work.width, work.width);
      all->push_back(layers.back());
      names.push_back(std::to_string(i));
    }
  }
};

// `forward(x)` is the net; `step()` ends a step.
template <typename Optimizer, typename Forward, typename Step>
Done train(const Work& work, Collective& ranks, Optimizer& optimizer, const Forward& forward,
           const Step& step) {
  torch::manual_seed(2 + ranks.rank());
  const auto batch = torch::randn({work.batch, work.width});
  std::vector<double> seconds;
  double loss_of_last = 0;
  for (int i = 0; i < kWarmUps + work.steps; ++i) {
    ranks.barrier();
    const auto start = std::chrono::steady_clock::now();
    optimizer.zero_grad();
    const auto loss = forward(batch).square().mean();
    loss.backward();
    step();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (i >= kWarmUps) seconds.push_back(took.count());
    loss_of_last = loss.template item<double>();
  }
  const auto middle = seconds.begin() + work.steps / 2;
  std::nth_element(seconds.begin(), middle, seconds.end());
  return {*middle, loss_of_last};
}

Done train_sharded(const Work& work, Collective& ranks) {
  Net net(work);
  ShardedParallel sharded(net.all.ptr(), ranks, net.names);
  Adam optimizer(sharded.shards(), Adam::Options(kRate));
  const auto forward = [&](at::Tensor x) {
    for (auto& layer : net.layers) x = torch::tanh(sharded.forward(layer, x));
    return x;
  };
  return train(work, ranks, optimizer, forward, [&] { sharded.step(optimizer); });
}

template <typename Optimizer>
Done train_replicated(const Work& work, Collective& ranks, Net& net, DataParallel& parallel,
                      Optimizer& optimizer) {
  const auto forward = [&](at::Tensor x) {
    parallel.before_forward();
    for (auto& layer : net.layers) x = torch::tanh(layer(x));
    parallel.after_forward(x);
    return x;
  };
  return train(work, ranks, optimizer, forward, [&] { parallel.step(optimizer); });
}

Done train_whole(const Work& work, Collective& ranks) {
  Net net(work);
  DataParallel parallel(net.all.ptr(), ranks);
  Adam optimizer(net.all->parameters(), Adam::Options(kRate));
  return train_replicated(work, ranks, net, parallel, optimizer);
}

Done train_zero(const Work& work, Collective& ranks) {
  Net net(work);
  DataParallel parallel(net.all.ptr(), ranks);
  ZeroOptimizer<Adam> optimizer(net.all->parameters(), ranks, Adam::Options(kRate));
  optimizer.reduce_scatter(parallel);
  return train_replicated(work, ranks, net, parallel, optimizer);
}

const std::map<std::string, Done (*)(const Work&, Collective&)> kModes{
    {"sharded", train_sharded}, {"whole", train_whole}, {"zero", train_zero}};

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() != 5 || !kModes.contains(words[0])) {
    fmt::print(stderr,
               "bench-sharded: expected sharded, whole or zero, and LAYERS, WIDTH, BATCH, STEPS\n");
    return 2;
  }
  try {
    at::set_num_threads(1);
    const Process process = bootstrap();
    const Work work{std::stoi(words[1]), std::stoi(words[2]), std::stoi(words[3]),
                    std::stoi(words[4])};
    const Done done = kModes.at(words[0])(work, *process.collective);
    if (process.world.rank == 0) fmt::print("{:.6f} {:.9f}\n", done.seconds, done.loss);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench-sharded: {}\n", error.what());
    return 1;
  }
  return 0;
}
