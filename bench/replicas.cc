// One training step of a batch, the same for each way. It is in one call, or in copies of the
// module on the threads of one process (data_parallel()). Or it has a process for each part
// (DataParallel; started by ddprun). bench/replicas runs them in turn.
//
//   bench-replicas one|copies|ranks LAYERS WIDTH BATCH WORKERS STEPS
//
// Prints the median seconds of a step. With ranks, rank 0 prints.
#include <ATen/Parallel.h>
#include <ddprun/data_parallel.h>
#include <ddprun/process.h>
#include <ddprun/replicas.h>
#include <fmt/format.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <string>
#include <vector>

#include "bench/median.h"

namespace {

namespace bench = ddprun::bench;
using namespace ddprun;  // NOLINT(google-build-using-namespace)

constexpr int kWarmUps = 3;

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl(int layers, int width) : layers_(layers), width_(width) { reset(); }
  void reset() override {
    stack_ = register_module("stack", torch::nn::Sequential());
    for (int i = 0; i < layers_; ++i) {
      stack_->push_back(torch::nn::Linear(width_, width_));
      stack_->push_back(torch::nn::Tanh());
    }
  }
  at::Tensor forward(const at::Tensor& x) { return stack_->forward(x); }

 private:
  int layers_;
  int width_;
  torch::nn::Sequential stack_{nullptr};
};
TORCH_MODULE(Net);

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() != 6) {
    fmt::print(
        stderr,
        "bench-replicas: expected one, copies or ranks, LAYERS, WIDTH, BATCH, WORKERS and STEPS\n");
    return 2;
  }
  at::set_num_threads(1);
  torch::manual_seed(1);
  Net net(std::stoi(words[1]), std::stoi(words[2]));
  const int workers = std::stoi(words[4]);
  const int steps = std::stoi(words[5]);
  const auto batch = torch::randn({std::stoi(words[3]), std::stoi(words[2])});
  torch::optim::SGD optimizer(net->parameters(), 0.01);
  if (words[0] == "ranks") {
    const Process process = bootstrap();
    DataParallel parallel(net.ptr(), *process.collective);
    const auto part = batch.chunk(workers)[static_cast<std::size_t>(process.collective->rank())];
    const double seconds = bench::median_seconds(kWarmUps, steps, [&] {
      optimizer.zero_grad();
      parallel.forward(net, part).pow(2).mean().backward();
      parallel.step(optimizer);
    });
    if (process.collective->rank() == 0) fmt::print("{:.6f}\n", seconds);
    return 0;
  }
  const std::vector<at::Device> devices(
      words[0] == "copies" ? static_cast<std::size_t>(workers) : 0, at::Device(at::kCPU));
  fmt::print("{:.6f}\n", bench::median_seconds(kWarmUps, steps, [&] {
               optimizer.zero_grad();
               data_parallel(net, batch, devices).pow(2).mean().backward();
               optimizer.step();
             }));
  return 0;
}
