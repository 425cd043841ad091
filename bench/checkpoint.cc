// Saves and loads a module of many MiB. bench/checkpoint runs it beside Python's torch.save and
// torch.load.
//
//   bench-checkpoint save FILE MIB TIMES | load FILE MIB TIMES
//
// Prints the seconds of each time, a line each.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <string>
#include <vector>

#include "worker/checkpoint/checkpoint_file.h"
#include "worker/checkpoint/fields.h"
#include "worker/checkpoint/module_values.h"

namespace {

namespace worker = ddprun::worker;
using ddprun::Value;

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

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() != 4 || (words[0] != "save" && words[0] != "load")) {
    fmt::print(stderr, "bench-checkpoint: expected save or load, FILE, MIB and TIMES\n");
    return 2;
  }
  at::set_num_threads(1);
  auto net = make_net(std::stoi(words[2]));
  for (int time = 0; time < std::stoi(words[3]); ++time) {
    const auto start = std::chrono::steady_clock::now();
    if (words[0] == "save") {
      save(words[1], *net);
    } else {
      load(words[1], *net);
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    fmt::print("{:.4f}\n", seconds.count());
  }
  return 0;
}
