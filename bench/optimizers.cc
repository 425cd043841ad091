// A step of optimizers, on one thread or on a GPU: ours, with Python's bits, and LibTorch's.
// bench/optimizers runs this beside Python's (bench/optimizers_torch.py).
//
//   bench-optimizers KIND[,KIND…] ours|libtorch MIB STEPS [--device=cpu|cuda]
//
// KIND: sgd (momentum), sgd-decay (and weight decay), adam or adamw. Prints for each kind a line
// with its name and the median seconds of a step.
#include <ATen/Parallel.h>
#include <ddprun/optimizers.h>
#include <fmt/format.h>
#include <torch/cuda.h>
#include <torch/types.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <optional>
#include <sstream>
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

struct Order {
  std::vector<std::string> kinds;
  bool ours = true;
  int mib = 0;
  int steps = 0;
  at::Device device = at::kCPU;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> found;
  std::istringstream rest(text);
  for (std::string word; std::getline(rest, word, ',');) found.push_back(word);
  return found;
}

bool is_kind(const std::string& word) {
  return word == "sgd" || word == "sgd-decay" || word == "adam" || word == "adamw";
}

std::optional<Order> parse(const std::vector<std::string>& words) {
  if (words.size() != 4 && words.size() != 5) return std::nullopt;
  Order order{split(words[0]), words[1] == "ours", number(words[2]), number(words[3])};
  if (words.size() == 5) {
    if (words[4] != "--device=cpu" && words[4] != "--device=cuda") return std::nullopt;
    order.device = words[4] == "--device=cuda" ? at::kCUDA : at::kCPU;
  }
  const bool is_good = !order.kinds.empty() && std::ranges::all_of(order.kinds, is_kind) &&
                       (order.ours || words[1] == "libtorch") && order.mib > 0 && order.steps > 0;
  return is_good ? std::optional(order) : std::nullopt;
}

// Layers of 4 MiB with gradients.
std::vector<at::Tensor> parameters(const Order& order) {
  std::vector<at::Tensor> made;
  for (int i = 0; i < order.mib; i += 4) {
    made.push_back(torch::randn({1024, 1024}, order.device).requires_grad_(true));
    made.back().mutable_grad() = torch::randn({1024, 1024}, order.device);
  }
  return made;
}

template <typename Optimizer, typename Options>
double seconds_of(const Order& order, const Options& options) {
  Optimizer optimizer(parameters(order), options);
  return bench::median_seconds(kWarmUps, order.steps, [&] {
    optimizer.step();
    if (order.device.is_cuda()) torch::cuda::synchronize();
  });
}

template <typename Ours, typename Theirs>
double measured(const Order& order, const typename Ours::Options& options) {
  return order.ours ? seconds_of<Ours>(order, options) : seconds_of<Theirs>(order, options);
}

double measured_kind(const std::string& kind, const Order& order) {
  if (kind == "adam") return measured<Adam, torch::optim::Adam>(order, {1e-3});
  if (kind == "adamw") return measured<AdamW, torch::optim::AdamW>(order, {1e-3});
  auto options = SGD::Options(1e-3).momentum(0.9);
  if (kind == "sgd-decay") options.weight_decay(5e-4);
  return measured<SGD, torch::optim::SGD>(order, options);
}

}  // namespace

int main(int argc, char** argv) {
  const auto order = parse({argv + 1, argv + argc});
  if (!order) {
    fmt::print(stderr,
               "bench-optimizers: expected sgd, sgd-decay, adam or adamw, comma-separated; ours or "
               "libtorch; MIB and STEPS, both from 1; perhaps --device=cpu or --device=cuda\n");
    return 2;
  }
  at::set_num_threads(1);
  try {
    for (const std::string& kind : order->kinds)
      fmt::print("{} {:.6f}\n", kind, measured_kind(kind, *order));
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench-optimizers: {}\n", error.what());
    return 1;
  }
  return 0;
}
