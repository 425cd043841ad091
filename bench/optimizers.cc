// A step of optimizers, on one thread: ours, with Python's bits, and LibTorch's. bench/optimizers
// runs this beside Python's.
//
//   bench-optimizers KIND ours|libtorch MIB STEPS
//
// KIND: sgd (momentum), sgd-decay (and weight decay), adam or adamw. Prints the median seconds of a
// step.
#include <ATen/Parallel.h>
#include <ddprun/optimizers.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <string>
#include <vector>

#include "bench/median.h"

namespace {

namespace bench = ddprun::bench;
using namespace ddprun;  // NOLINT(google-build-using-namespace)

constexpr int kWarmUps = 2;

// A whole number from 1, or 0.
int number(const std::string& text) {
  int value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end ? std::max(value, 0) : 0;
}

// Layers of 4 MiB with gradients.
std::vector<at::Tensor> parameters(int mib) {
  std::vector<at::Tensor> made;
  for (int i = 0; i < mib; i += 4) {
    made.push_back(torch::randn({1024, 1024}).requires_grad_(true));
    made.back().mutable_grad() = torch::randn({1024, 1024});
  }
  return made;
}

template <typename Ours, typename Theirs>
double measured(bool ours, int mib, int steps, const typename Ours::Options& options) {
  if (ours) {
    Ours optimizer(parameters(mib), options);
    return bench::median_seconds(kWarmUps, steps, [&] { optimizer.step(); });
  }
  Theirs optimizer(parameters(mib), options);
  return bench::median_seconds(kWarmUps, steps, [&] { optimizer.step(); });
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto is = [&](std::size_t place, const char* word) { return words[place] == word; };
  const bool is_good = words.size() == 4 &&
                       (is(0, "sgd") || is(0, "sgd-decay") || is(0, "adam") || is(0, "adamw")) &&
                       (is(1, "ours") || is(1, "libtorch")) && number(words[2]) > 0 &&
                       number(words[3]) > 0;
  if (!is_good) {
    fmt::print(
        stderr,
        "bench-optimizers: expected sgd, sgd-decay, adam or adamw; ours or libtorch; MIB and "
        "STEPS, both from 1\n");
    return 2;
  }
  at::set_num_threads(1);
  const bool ours = is(1, "ours");
  const int mib = number(words[2]);
  const int steps = number(words[3]);
  double seconds = 0;
  if (is(0, "adam")) {
    seconds = measured<Adam, torch::optim::Adam>(ours, mib, steps, {1e-3});
  } else if (is(0, "adamw")) {
    seconds = measured<AdamW, torch::optim::AdamW>(ours, mib, steps, {1e-3});
  } else {
    auto options = SGD::Options(1e-3).momentum(0.9);
    if (is(0, "sgd-decay")) options.weight_decay(5e-4);
    seconds = measured<SGD, torch::optim::SGD>(ours, mib, steps, options);
  }
  fmt::print("{:.6f}\n", seconds);
  return 0;
}
