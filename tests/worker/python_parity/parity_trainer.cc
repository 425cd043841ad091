// Trains one small model in each of DDP's modes, as parity_trainer.py does with PyTorch, and prints a
// line `mode hash` for each: the hash of all weights and buffers after twenty steps; for power_sgd the
// weights themselves. Started by ddprun, with the modes as arguments.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

#include "worker/comm_hooks/power_sgd.h"
#include "worker/reducer/data_parallel.h"
#include "worker/startup/bootstrap.h"

namespace ddprun::worker {
namespace {

constexpr int kSteps = 20;

struct ParityNetImpl : torch::nn::Module {
  explicit ParityNetImpl(bool with_norm) {
    first = register_module("first", torch::nn::Linear(20, 32));
    if (with_norm) norm = register_module("norm", torch::nn::BatchNorm1d(32));
    aside = register_module("aside", torch::nn::Linear(32, 32));
    last = register_module("last", torch::nn::Linear(32, 10));
  }

  torch::Tensor forward(const torch::Tensor& x, bool use_aside) {
    auto hidden = first(x);
    if (norm) hidden = norm(hidden);
    hidden = torch::tanh(hidden);
    if (use_aside) hidden = hidden + aside(hidden);
    return last(hidden);
  }

  torch::nn::Linear first{nullptr}, aside{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(ParityNet);

ParityNet made_net(const std::string& mode) {
  ParityNet net(mode == "batch_norm");
  torch::manual_seed(5);
  const torch::NoGradGuard no_grad;
  for (at::Tensor& parameter : net->parameters()) {
    parameter.copy_(torch::randn(parameter.sizes()) * 0.2);
  }
  return net;
}

// FNV-1a, 64 bits.
std::uint64_t hash_of(const torch::nn::Module& net) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  const auto add = [&hash](const at::Tensor& tensor) {
    const at::Tensor values = tensor.detach().contiguous();
    const auto* bytes = static_cast<const unsigned char*>(values.data_ptr());
    for (std::size_t i = 0; i < values.nbytes(); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3U;
  };
  for (const at::Tensor& parameter : net.parameters()) add(parameter);
  for (const at::Tensor& buffer : net.buffers()) add(buffer);
  return hash;
}

std::string values_of(const torch::nn::Module& net) {
  std::vector<float> values;
  for (const at::Tensor& parameter : net.parameters()) {
    const at::Tensor flat = parameter.detach().reshape(-1);
    values.insert(values.end(), flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel());
  }
  return fmt::format("{}", fmt::join(values, ","));
}

// Which ranks use the layer `aside` in this step.
bool uses_aside(const std::string& mode, int step, int rank) {
  if (mode == "static") return false;
  return mode != "unused" || step % 4 == rank;
}

std::string train(const std::string& mode, Collective& collective) {
  ParityNet net = made_net(mode);
  DataParallelOptions options;
  options.find_unused_parameters = mode == "unused";
  options.static_graph = mode == "static";
  DataParallel parallel(net.ptr(), collective, options);
  const bool thin = mode == "power_sgd";
  if (thin)
    parallel.comm_hook(power_sgd_hook({.matrix_approximation_rank = 2, .start_iteration = 2}));
  torch::optim::SGD optimizer(net->parameters(),
                              torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-4));
  const int micro_batches = mode == "no_sync" ? 4 : 1;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (int part = 0; part < micro_batches; ++part) {
      torch::manual_seed(1000 * step + 10 * part + collective.rank());
      const auto x = torch::randn({8, 20});
      const auto y = torch::randint(10, {8}, torch::kLong);
      const auto backward = [&] {
        const auto out = parallel.forward(net, x, uses_aside(mode, step, collective.rank()));
        (torch::cross_entropy_loss(out, y) / micro_batches).backward();
      };
      if (part + 1 < micro_batches) {
        const auto no_sync = parallel.no_sync();
        backward();
      } else {
        backward();
      }
    }
    parallel.step(optimizer);
  }
  return thin ? values_of(*net) : fmt::format("{:016x}", hash_of(*net));
}

}  // namespace
}  // namespace ddprun::worker

int main(int argc, char** argv) {
  using namespace ddprun::worker;  // NOLINT(google-build-using-namespace)
  at::set_num_threads(1);
  auto process = bootstrap().value();
  for (const std::string& mode : std::vector<std::string>(argv + 1, argv + argc)) {
    const std::string end = train(mode, *process.collective);
    if (process.world.rank == 0) fmt::print("{} {}\n", mode, end);
  }
}
