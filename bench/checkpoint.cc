// Saves and loads a module of many MiB. bench/checkpoint runs it beside Python's torch.save and
// torch.load.
//
//   bench-checkpoint save FILE MIB TIMES | load FILE MIB TIMES | async FILE MIB TIMES
//
// Prints the seconds of each time, a line each. An asynchronous save has five. Two are the call
// and the whole save. Three are of steps: the median before it, the mean and the longest beside it.
#include <ATen/Parallel.h>
#include <ddprun/checkpoint.h>
#include <ddprun/collective.h>
#include <fmt/format.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <string>
#include <vector>

#include "worker/checkpoint/checkpoint_file.h"
#include "worker/checkpoint/fields.h"
#include "worker/checkpoint/module_values.h"

namespace {

namespace worker = ddprun::worker;
using ddprun::Value;
using Clock = std::chrono::steady_clock;

constexpr int kStepsBefore = 50;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Layers of 16 MiB, as Python's twin has them.
torch::nn::Sequential make_net(int mib) {
  const torch::NoGradGuard no_grad;
  torch::nn::Sequential net;
  for (int i = 0; i < mib / 16; ++i) {
    net->push_back(torch::nn::Linear(torch::nn::LinearOptions(2048, 2048).bias(false)));
  }
  return net;
}

void save(const std::string& path, const torch::nn::Module& net) {
  Value::Dict file;
  file.set("state_dict", worker::state_dict(net).value());
  worker::write_checkpoint_file(path, Value(std::move(file))).value();
}

void load(const std::string& path, torch::nn::Module& net) {
  const auto file = worker::read_checkpoint_file(path).value();
  worker::load_state_dict(**worker::field_value(file.value, "state_dict"), net).value();
}

// Trains one layer after the other, so that a step is short beside a save.
class Training {
 public:
  explicit Training(torch::nn::Sequential& net)
      : net_(net), optimizer_(net->parameters(), 1e-6), batch_(torch::randn({32, 2048})) {}

  ddprun::CheckpointRun state(ddprun::Collective& ranks) { return {*net_, optimizer_, ranks}; }

  // Returns its seconds.
  double step() {
    const auto start = Clock::now();
    auto& layer = *net_[next_++ % net_->size()]->as<torch::nn::Linear>();
    layer.forward(batch_).pow(2).mean().backward();
    optimizer_.step();
    optimizer_.zero_grad();
    return seconds_since(start);
  }

 private:
  torch::nn::Sequential& net_;
  torch::optim::SGD optimizer_;
  torch::Tensor batch_;
  std::size_t next_ = 0;
};

void save_beside_steps(const std::string& path, Training& training, ddprun::Collective& ranks,
                       ddprun::AsyncCheckpoint& checkpoint) {
  std::vector<double> before, during;
  for (int i = 0; i < kStepsBefore; ++i) before.push_back(training.step());
  std::ranges::sort(before);
  const auto start = Clock::now();
  checkpoint.save(path, training.state(ranks), {});
  const double stall = seconds_since(start);
  while (checkpoint.is_saving()) during.push_back(training.step());
  checkpoint.wait();
  const double whole = seconds_since(start);
  if (during.empty()) during.push_back(training.step());
  fmt::print(
      "{:.4f} {:.4f} {:.5f} {:.5f} {:.5f}\n", stall, whole, before[before.size() / 2],
      std::accumulate(during.begin(), during.end(), 0.0) / static_cast<double>(during.size()),
      std::ranges::max(during));
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() != 4 || (words[0] != "save" && words[0] != "load" && words[0] != "async")) {
    fmt::print(stderr, "bench-checkpoint: expected save, load or async, FILE, MIB and TIMES\n");
    return 2;
  }
  at::set_num_threads(1);
  auto net = make_net(std::stoi(words[2]));
  const auto ranks = ddprun::make_alone_collective();
  ddprun::AsyncCheckpoint checkpoint(*ranks);
  Training training(net);
  for (int time = 0; time < std::stoi(words[3]); ++time) {
    const auto start = Clock::now();
    if (words[0] == "async") {
      save_beside_steps(words[1], training, *ranks, checkpoint);
      continue;
    }
    if (words[0] == "save") {
      save(words[1], *net);
    } else {
      load(words[1], *net);
    }
    fmt::print("{:.4f}\n", seconds_since(start));
  }
  return 0;
}
