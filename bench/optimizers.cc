// A step of optimizers, on one thread: ours, with Python's bits, and LibTorch's. bench/optimizers runs this beside Python's.
//
//   bench-optimizers KIND ours|libtorch MIB STEPS
//
// KIND: sgd (momentum), sgd-decay (and weight decay), adam or adamw. Prints the median seconds of a step.
#include "worker/zero/optimizers.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

namespace {

namespace worker = ddprun::worker;

constexpr int kWarmUps = 2;

// Layers of 4 MiB with gradients.
std::vector<at::Tensor> parameters(int mib) {
  std::vector<at::Tensor> made;
  for (int i = 0; i < mib; i += 4) {
    made.push_back(torch::randn({1024, 1024}).requires_grad_(true));
    made.back().mutable_grad() = torch::randn({1024, 1024});
  }
  return made;
}

double median_of(torch::optim::Optimizer& optimizer, int steps) {
  std::vector<double> seconds;
  for (int i = 0; i < kWarmUps + steps; ++i) {
    const auto start = std::chrono::steady_clock::now();
    optimizer.step();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (i >= kWarmUps) seconds.push_back(took.count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + steps / 2, seconds.end());
  return seconds[static_cast<std::size_t>(steps) / 2];
}

template <typename Ours, typename Theirs>
double measured(bool ours, int mib, int steps, const typename Ours::Options& options) {
  if (ours) {
    Ours optimizer(parameters(mib), options);
    return median_of(optimizer, steps);
  }
  Theirs optimizer(parameters(mib), options);
  return median_of(optimizer, steps);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto is = [&](std::size_t place, const char* word) { return words[place] == word; };
  if (words.size() != 4 || !(is(1, "ours") || is(1, "libtorch"))) {
    fmt::print(stderr, "bench-optimizers: expected KIND, ours or libtorch, MIB and STEPS\n");
    return 2;
  }
  at::set_num_threads(1);
  const bool ours = is(1, "ours");
  const int mib = std::stoi(words[2]);
  const int steps = std::stoi(words[3]);
  double seconds = 0;
  if (is(0, "adam")) {
    seconds = measured<worker::Adam, torch::optim::Adam>(ours, mib, steps, {1e-3});
  } else if (is(0, "adamw")) {
    seconds = measured<worker::AdamW, torch::optim::AdamW>(ours, mib, steps, {1e-3});
  } else {
    auto options = worker::SGD::Options(1e-3).momentum(0.9);
    if (is(0, "sgd-decay")) options.weight_decay(5e-4);
    seconds = measured<worker::SGD, torch::optim::SGD>(ours, mib, steps, options);
  }
  fmt::print("{:.6f}\n", seconds);
  return 0;
}
