// A step of optimizers, on one thread or on a GPU: ours, with Python's bits, and LibTorch's.
// bench/optimizers runs this beside Python's (bench/optimizers_torch.py).
//
//   bench-optimizers KIND[,KIND…] ours|libtorch MIB STEPS [--device=cpu|cuda]
//
// KIND: sgd (momentum), sgd-decay (and weight decay), adam or adamw. With @resnet50 behind it the
// parameters are those of bench/step's ResNet-50, and not MIB of layers. Prints for each kind a
// line with its name and the median seconds of a step.
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
#include <string_view>
#include <vector>

#include "bench/median.h"
#include "bench/step_models.h"

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

constexpr std::string_view kResNet50 = "@resnet50";

std::string without_model(const std::string& kind) {
  return kind.ends_with(kResNet50) ? kind.substr(0, kind.size() - kResNet50.size()) : kind;
}

bool is_kind(const std::string& kind) {
  const std::string word = without_model(kind);
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

// Those of a ResNet-50, or layers of 4 MiB. With gradients.
std::vector<at::Tensor> parameters(const Order& order, const std::string& kind) {
  std::vector<at::Tensor> made;
  if (kind.ends_with(kResNet50)) {
    made = bench::make_model("resnet50", order.device)->parameters();
  } else {
    for (int i = 0; i < order.mib; i += 4)
      made.push_back(torch::randn({1024, 1024}, order.device).requires_grad_(true));
  }
  for (at::Tensor& parameter : made) parameter.mutable_grad() = torch::randn_like(parameter);
  return made;
}

template <typename Optimizer, typename Options>
double seconds_of(const Order& order, const std::string& kind, const Options& options) {
  Optimizer optimizer(parameters(order, kind), options);
  return bench::median_seconds(kWarmUps, order.steps, [&] {
    optimizer.step();
    if (order.device.is_cuda()) torch::cuda::synchronize();
  });
}

template <typename Ours, typename Theirs>
double measured(const Order& order, const std::string& kind,
                const typename Ours::Options& options) {
  return order.ours ? seconds_of<Ours>(order, kind, options)
                    : seconds_of<Theirs>(order, kind, options);
}

double measured_kind(const std::string& kind, const Order& order) {
  const std::string optimizer = without_model(kind);
  if (optimizer == "adam") return measured<Adam, torch::optim::Adam>(order, kind, {1e-3});
  if (optimizer == "adamw") return measured<AdamW, torch::optim::AdamW>(order, kind, {1e-3});
  auto options = SGD::Options(1e-3).momentum(0.9);
  if (optimizer == "sgd-decay") options.weight_decay(5e-4);
  return measured<SGD, torch::optim::SGD>(order, kind, options);
}

}  // namespace

int main(int argc, char** argv) {
  const auto order = parse({argv + 1, argv + argc});
  if (!order) {
    fmt::print(
        stderr,
        "bench-optimizers: expected sgd, sgd-decay, adam or adamw, perhaps with @resnet50, "
        "comma-separated; ours or libtorch; MIB and STEPS, both from 1; perhaps --device=cpu or "
        "--device=cuda\n");
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
