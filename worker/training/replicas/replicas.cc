#include <ATen/ThreadLocalState.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <ddprun/replicas.h>
#include <fmt/format.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <thread>

namespace ddprun::worker {

std::vector<at::Tensor> scatter(const at::Tensor& input, const std::vector<at::Device>& devices,
                                std::int64_t dim) {
  if (input.dim() == 0)
    throw std::invalid_argument("data_parallel: the input is a scalar: expected a batch");
  std::vector<at::Tensor> parts = input.chunk(static_cast<std::int64_t>(devices.size()), dim);
  for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = parts[i].to(devices[i]);
  return parts;
}

namespace {

// The calling thread's current streams. A CPU has none.
std::vector<c10::Stream> current_streams(const std::vector<at::Device>& devices) {
  std::vector<c10::Stream> streams;
  for (const at::Device device : devices)
    if (!device.is_cpu())
      streams.push_back(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return streams;
}

}  // namespace

// A new thread has the default streams: it would read an input that the caller's have not written.
void run_on_devices(const std::vector<at::Device>& devices,
                    const std::function<void(std::size_t index)>& run) {
  const at::ThreadLocalState modes;
  const std::vector<c10::Stream> streams = current_streams(devices);
  std::vector<std::exception_ptr> errors(devices.size());
  const auto run_one = [&](std::size_t index) {
    try {
      const at::ThreadLocalStateGuard same_modes(modes);
      const c10::MultiStreamGuard same_streams(streams);
      const c10::OptionalDeviceGuard device(devices[index]);
      run(index);
    } catch (...) {
      errors[index] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 1; i < devices.size(); ++i) threads.emplace_back(run_one, i);
    run_one(0);
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

at::Tensor gather(const std::vector<at::Tensor>& outputs, at::Device device, std::int64_t dim) {
  std::vector<at::Tensor> here;
  here.reserve(outputs.size());
  for (const at::Tensor& output : outputs) here.push_back(output.to(device));
  return here.front().dim() == 0 ? at::stack(here) : at::cat(here, dim);
}

void check_lies_on(const torch::nn::Module& module, at::Device device) {
  const auto check = [device](const at::Tensor& tensor) {
    if (tensor.device() == device) return;
    throw std::invalid_argument(
        fmt::format("module must have its parameters and buffers on device {} (device_ids[0]) but "
                    "found one of them on device: {}",
                    device.str(), tensor.device().str()));
  };
  for (const at::Tensor& tensor : module.parameters()) check(tensor);
  for (const at::Tensor& tensor : module.buffers()) check(tensor);
}

void keep_buffers(torch::nn::Module& module, const torch::nn::Module& replica) {
  const at::NoGradGuard no_grad;
  const auto from = replica.buffers();
  auto to = module.buffers();
  for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
}

}  // namespace ddprun::worker
