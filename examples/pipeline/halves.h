// All layers in each worker, in halves, as for two devices. All workers must call the same. The
// training thread.
#pragma once

#include <ddprun/data_parallel.h>
#include <ddprun/metrics.h>
#include <ddprun/optimizers.h>
#include <ddprun/process.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include "examples/common/program.h"
#include "examples/pipeline/layers.h"

namespace ddprun::examples {

// The model in two stages of one process. Activations go from device to device in forward().
struct HalvesImpl : torch::nn::Module {
  HalvesImpl(const PipelineFlags& options, at::Device front, at::Device back)
      : devices{front, back},
        first(register_module("first", stage_of(options, 0, 2))),
        second(register_module("second", stage_of(options, 1, 2))) {
    first->to(front);
    second->to(back);
  }
  at::Tensor forward(const at::Tensor& x) {
    return second->forward(first->forward(x.to(devices[0])).to(devices[1]));
  }

  at::Device devices[2];
  torch::nn::Sequential first, second;
};
TORCH_MODULE(Halves);

// A collective has one GPU, so both devices are the same one.
inline void run_halves(const Process& process, const PipelineFlags& options) {
  Collective& ranks = *process.collective;
  if (options.layers % 2 != 0)
    throw UsageError(
        fmt::format("--layers: {} given, expected a multiple of the 2 halves", options.layers));
  if (options.batch_size % ranks.world_size() != 0)
    throw UsageError(fmt::format("--batch-size: {} given, expected a multiple of {} workers",
                                 options.batch_size, ranks.world_size()));
  const at::Device device = device_of(ranks);
  Halves halves(options, device, device);
  DataParallel parallel(halves.ptr(), ranks);
  SGD optimizer(halves->parameters(), SGD::Options(options.lr));
  const int share = options.batch_size / ranks.world_size();
  for (int step = 0; step < options.steps; ++step) {
    const auto text = text_of(options, step).narrow(0, share * ranks.rank(), share).to(device);
    optimizer.zero_grad();
    const auto loss = loss_of(parallel.forward(halves, text.narrow(1, 0, options.length)),
                              text.narrow(1, 1, options.length));
    loss.backward();
    parallel.step(optimizer);
    if ((step + 1) % 10 != 0) continue;
    Mean mean;
    mean.add(loss.item<double>());
    const double of_all = mean.over(ranks);
    say(process, fmt::format("step {} loss={}", step + 1, of_all));
  }
}

}  // namespace ddprun::examples
