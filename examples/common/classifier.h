// The training loop and the accuracy of a net that guesses classes. Batches have `targets`, [batch]
// int64, and size(); to(device) copies them there. An example's own part is its way from a batch to
// outputs, [batch, classes]. All ranks must call each of these. The training thread.
#pragma once

#include <ATen/core/grad_mode.h>
#include <ddprun/checkpoint.h>
#include <ddprun/data_loader.h>
#include <ddprun/data_parallel.h>
#include <ddprun/metrics.h>
#include <fmt/format.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <functional>

#include "examples/common/program.h"

namespace ddprun::examples {

// Whether this rank trains on a GPU: then a loader pins its batches, and copies do not block the
// host.
inline bool on_gpu(const Process& process) { return process.collective->device() != Device::kCpu; }

// Moves the net to where this rank trains (--device), before anything knows its parameters.
inline void place(const Process& process, torch::nn::Module& net) {
  if (!on_gpu(process)) return;
  net.to(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(process.world.local_rank)));
}

// Trains on the batches of `loader`, to their end or until `go_on()` is false after a step. The
// loss of this rank's samples. `outputs_of(batch)` must go through `parallel`.
template <typename Batches, typename OutputsOf>
Mean train_epoch(
    Batches& loader, DataParallel& parallel, torch::optim::Optimizer& optimizer,
    const OutputsOf& outputs_of, const std::function<bool()>& go_on = [] { return true; }) {
  const at::Device device = optimizer.param_groups()[0].params()[0].device();
  Mean loss;
  for (const auto& read : loader) {
    const auto batch = read.to(device);
    optimizer.zero_grad();
    const auto batch_loss = torch::nn::functional::cross_entropy(outputs_of(batch), batch.targets);
    batch_loss.backward();
    parallel.step(optimizer);
    const auto samples = static_cast<double>(batch.size());
    loss.add(batch_loss.template item<double>() * samples, samples);
    if (!go_on()) break;
  }
  return loss;
}

// The line of epoch number `epoch`, from 0. Nothing where this rank has seen no sample: the run was
// cut off behind the last batch of the epoch.
inline void say_epoch(const Process& process, int epoch, int epochs, const Mean& loss) {
  const double mean = loss.over(*process.collective);
  if (loss.count() > 0) say(process, fmt::format("epoch {}/{} loss={}", epoch + 1, epochs, mean));
}

// The share of held-out samples that `net` guesses right. Ranks look at their own, none at the
// padding; only sums and counts travel. `outputs_of(batch)` uses the net itself, not DataParallel:
// there is nothing to sum, and ranks may have unequal batches. Leaves the net in evaluation mode.
template <typename Dataset, typename OutputsOf>
double accuracy_over(Collective& ranks, torch::nn::Module& net, const Dataset& held_out,
                     std::size_t batch_size, const OutputsOf& outputs_of) {
  const torch::NoGradGuard no_gradients;
  net.eval();
  const DistributedSampler sampler(held_out.size(), ranks.world_size(), ranks.rank(),
                                   {.shuffle = false});
  BatchLoader loader(held_out, sampler, batch_size, {.unpadded = true});
  const at::Device device = net.parameters()[0].device();
  Mean right;
  for (const auto& read : loader) {
    const auto batch = read.to(device);
    const auto guesses = outputs_of(batch).argmax(1);
    right.add(guesses.eq(batch.targets).sum().template item<double>(),
              static_cast<double>(batch.size()));
  }
  return right.over(ranks);
}

// The same for a net that takes the `inputs` of a batch.
template <typename Net, typename Dataset>
double accuracy_over(Collective& ranks, Net& net, const Dataset& held_out, std::size_t batch_size) {
  return accuracy_over(ranks, *net, held_out, batch_size,
                       [&](const auto& batch) { return net->forward(batch.inputs); });
}

// The last lines of an example: what its twin prints, too.
inline void say_result(const Process& process, const torch::nn::Module& net, double accuracy) {
  say(process, fmt::format("weights={:016x}\naccuracy={:.4f}", checksum(net), accuracy));
}

}  // namespace ddprun::examples
