// Trains one small model in each of DDP's modes, as parity_trainer.py does with PyTorch. Prints a
// line `mode hash:hash` for each. The first one is of all weights and buffers after twenty steps.
// The second one is of all gradients of all steps. For power_sgd it prints the weights
// themselves. For the modes float16_wire and bfloat16_wire it prints the wire's cost in bits.
// Started by ddprun, with --device=cpu or --device=cuda, and the modes as arguments.
#include <ddprun/comm_hook.h>
#include <ddprun/data_parallel.h>
#include <ddprun/optimizers.h>
#include <ddprun/tensor_collective.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/worker/python_parity/parity_net.h"
#include "tests/worker/python_parity/parity_program.h"

namespace ddprun::worker {
namespace {

constexpr int kSteps = 20;

// The type of the parameters. A mode that ends in _copy has gradients apart from the buckets.
at::ScalarType dtype_of(const std::string& mode) {
  if (mode == "float16") return torch::kHalf;
  return mode == "bfloat16" || mode == "bfloat16_copy" ? torch::kBFloat16 : torch::kFloat;
}

ParityNet net_for(const std::string& mode, const Collective& ranks) {
  ParityNet net = made_net(mode == "batch_norm", device_of(ranks));
  // It would make floats of the buffers that count, too.
  if (dtype_of(mode) != torch::kFloat) net->to(dtype_of(mode));
  return net;
}

std::string values_of(const torch::nn::Module& net) {
  std::vector<float> values;
  for (const at::Tensor& parameter : net.parameters()) {
    const at::Tensor flat = parameter.detach().cpu().reshape(-1);
    values.insert(values.end(), flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel());
  }
  return fmt::format("{}", fmt::join(values, ","));
}

// Returns whether a rank uses the layer `aside` in this step.
bool uses_aside(const std::string& mode, int step, int rank) {
  if (mode == "static") return false;
  return mode != "unused" || step % 4 == rank;
}

constexpr double kRate = 0.05;
constexpr double kMomentum = 0.9;
constexpr double kDecay = 1e-4;

// A number as Python gives it to an operation. LibTorch's mul_(double) swaps the factors, and
// rounds the number to 16 bits where the tensor has 16.
at::Tensor python_number(double value) {
  at::Tensor number = torch::scalar_tensor(value, torch::kDouble);
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  return number;
}

// torch/optim/sgd.py of 2.11, _single_tensor_sgd. The momentum of LibTorch's SGD has other bits in
// 16-bit parameters, also without DataParallel: it calls mul_(double).
class PythonSgd {
 public:
  explicit PythonSgd(std::vector<at::Tensor> parameters)
      : parameters_(std::move(parameters)), momenta_(parameters_.size()) {}

  void zero_grad() {
    for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  }

  void step() {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor gradient = parameters_[i].grad().add(parameters_[i], kDecay);
      if (momenta_[i].defined())
        momenta_[i].mul_(python_number(kMomentum)).add_(gradient, 1);
      else
        momenta_[i] = gradient.clone();
      parameters_[i].add_(momenta_[i], -kRate);
    }
  }

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> momenta_;
};

// Returns the hash of all gradients of all steps.
template <typename Optimizer>
std::uint64_t make_steps(const std::string& mode, ParityNet& net, DataParallel& parallel,
                         Optimizer& optimizer, const Collective& ranks) {
  Hash gradients;
  const int micro_batches = mode == "no_sync" ? 4 : 1;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (int part = 0; part < micro_batches; ++part) {
      const ParityBatch batch = batch_of(1000 * step + 10 * part + ranks.rank(), device_of(ranks));
      const at::Tensor x = batch.x.to(dtype_of(mode));
      const auto backward = [&] {
        const auto out = parallel.forward(net, x, uses_aside(mode, step, ranks.rank()));
        (torch::cross_entropy_loss(out, batch.y) / micro_batches).backward();
      };
      if (part + 1 < micro_batches) {
        const auto no_sync = parallel.no_sync();
        backward();
      } else {
        backward();
      }
    }
    // Ours go with their steps, and PyTorch's stay.
    if (mode == "in_backward") continue;
    for (const at::Tensor& parameter : net->parameters())
      if (parameter.grad().defined()) gradients.add(parameter.grad());
    parallel.step(optimizer);
  }
  return gradients.value();
}

std::string train(const std::string& mode, Collective& collective) {
  ParityNet net = net_for(mode, collective);
  DataParallelOptions options;
  options.find_unused_parameters = mode == "unused";
  options.static_graph = mode == "static";
  options.gradient_as_bucket_view = !mode.ends_with("_copy");
  DataParallel parallel(net.ptr(), collective, options);
  const bool thin = mode == "power_sgd";
  if (thin)
    parallel.comm_hook(power_sgd_hook({.matrix_approximation_rank = 2, .start_iteration = 2}));
  const auto options_of_sgd =
      torch::optim::SGDOptions(kRate).momentum(kMomentum).weight_decay(kDecay);
  if (mode == "in_backward") {
    parallel.comm_hook(all_reduce_hook());  // it divides as PyTorch does in this mode
    parallel.step_in_backward(optimizer_in_backward<torch::optim::SGD>(*net, options_of_sgd));
  }
  std::uint64_t gradients = 0;
  if (dtype_of(mode) != torch::kFloat) {
    PythonSgd optimizer(net->parameters());
    gradients = make_steps(mode, net, parallel, optimizer, collective);
  } else {
    torch::optim::SGD optimizer(net->parameters(), options_of_sgd);
    gradients = make_steps(mode, net, parallel, optimizer, collective);
  }
  return thin ? values_of(*net) : fmt::format("{:016x}:{:016x}", hash_of(*net), gradients);
}

// The gradients of one pass, in a row.
at::Tensor gradients_of(DataParallel& parallel, ParityNet& net, const Collective& ranks) {
  net->zero_grad();
  const auto [x, y] = batch_of(ranks.rank(), device_of(ranks));
  torch::cross_entropy_loss(parallel.forward(net, x, true), y).backward();
  std::vector<at::Tensor> rows;
  for (const at::Tensor& parameter : net->parameters())
    rows.push_back(parameter.grad().reshape(-1));
  return torch::cat(rows).to(torch::kDouble);
}

// Returns how far averages that travel in 16 bits are from the true ones: `worst,mean`. The worst
// is told as a share of sum |g|/N · 2e + 1e-7. Here e is the half distance of two numbers of that
// dtype; the mean is absolute.
std::string wire_error(const std::string& mode, Collective& collective) {
  const bool half = mode == "float16_wire";
  ParityNet net = net_for(mode, collective);
  DataParallel parallel(net.ptr(), collective);
  parallel.comm_hook(compressed_hook(half ? torch::kHalf : torch::kBFloat16));
  const auto local = [&] {
    const auto no_sync = parallel.no_sync();
    return gradients_of(parallel, net, collective);
  }();
  TensorCollective tensors(collective);
  const auto truth = local / collective.world_size();
  const auto magnitude = truth.abs();
  tensors.all_reduce(truth);
  tensors.all_reduce(magnitude);
  const auto error = (gradients_of(parallel, net, collective) - truth).abs();
  const auto bound = 2 * std::ldexp(1.0, half ? -11 : -8) * magnitude + 1e-7;
  return fmt::format("{},{}", (error / bound).max().item<double>(), error.mean().item<double>());
}

}  // namespace
}  // namespace ddprun::worker

int main(int argc, char** argv) {
  ddprun::worker::print_ends(argc, argv, [](const std::string& mode, ddprun::Collective& ranks) {
    return mode.ends_with("_wire") ? ddprun::worker::wire_error(mode, ranks)
                                   : ddprun::worker::train(mode, ranks);
  });
}
