// One batch through copies of a module on several devices of this process: PyTorch's DataParallel
// (torch 2.11, torch/nn/parallel/data_parallel.py). docs/replicas.md measures why DataParallel of
// data_parallel.h, with a process for each device, is faster. No launcher and no
// collective is needed.
//
//   const std::vector<at::Device> devices = {at::Device("cuda:0"), at::Device("cuda:1")};
//   const auto output = ddprun::data_parallel(net, images, devices);
//   torch::nll_loss(output, labels).backward();  // sums the gradients of all copies into net's
//   optimizer.step();
//
// In each call the module is copied to each device and runs there on a thread of its own. Only the
// first copy's changes to its buffers (running statistics) are kept. Devices may be the same, so
// that a CPU can stand for several.
#pragma once

#include <torch/nn/parallel/data_parallel.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace ddprun {

// Options of data_parallel().
struct ReplicaOptions {
  std::optional<at::Device> output_device;  // unset: the first one
  std::int64_t dim = 0;                     // of input and output, along which the batch is split
};

namespace worker {

// The parts of the input, each on its device: as many as there are devices or fewer. All have the
// size ceil(batch / devices) but for the last one, which may be smaller.
std::vector<at::Tensor> scatter(const at::Tensor& input, const std::vector<at::Device>& devices,
                                std::int64_t dim);

// Runs each on a thread of its own, with this thread's modes (gradients, autocast) and streams. Its
// device is the current one. Throws the first exception, in the order of the devices, when all have
// ended.
void run_on_devices(const std::vector<at::Device>& devices,
                    const std::function<void(std::size_t index)>& run);

// The outputs on one device, in order. Scalars become one dimension.
at::Tensor gather(const std::vector<at::Tensor>& outputs, at::Device device, std::int64_t dim);

// Throws std::invalid_argument, in PyTorch's words, if a parameter or buffer lies elsewhere.
void check_lies_on(const torch::nn::Module& module, at::Device device);

// The module gets what a copy has done to its buffers.
void keep_buffers(torch::nn::Module& module, const torch::nn::Module& replica);

}  // namespace worker

// Returns module->forward(input), with one tensor in and one out. `Module` is a module's own type,
// derived from torch::nn::Cloneable. `devices`: the first one has the module. With one device, or a
// batch of one part, it is a plain call; without devices, too. Throws what a copy throws.
template <typename Module>
at::Tensor data_parallel(const std::shared_ptr<Module>& module, const at::Tensor& input,
                         const std::vector<at::Device>& devices,
                         const ReplicaOptions& options = {}) {
  if (devices.empty()) return module->forward(input);
  worker::check_lies_on(*module, devices.front());
  const at::Device target = options.output_device.value_or(devices.front());
  const auto parts = worker::scatter(input, devices, options.dim);
  if (parts.size() == 1) return module->forward(parts.front()).to(target);
  const std::vector<at::Device> used(devices.begin(),
                                     devices.begin() + static_cast<std::ptrdiff_t>(parts.size()));
  const auto replicas = torch::nn::parallel::replicate(module, used);
  std::vector<at::Tensor> outputs(parts.size());
  worker::run_on_devices(used, [&](std::size_t i) { outputs[i] = replicas[i]->forward(parts[i]); });
  worker::keep_buffers(*module, *replicas.front());
  return worker::gather(outputs, target, options.dim);
}
// Does the same for a holder of a module.
template <typename Module>
at::Tensor data_parallel(const torch::nn::ModuleHolder<Module>& module, const at::Tensor& input,
                         const std::vector<at::Device>& devices,
                         const ReplicaOptions& options = {}) {
  return data_parallel(module.ptr(), input, devices, options);
}

}  // namespace ddprun
