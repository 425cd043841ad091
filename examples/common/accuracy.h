// The accuracy on held-out samples, which the ranks share: each looks at its own, none at the padding,
// and only sums and counts travel. All ranks must call it. The training thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <cstddef>

#include "examples/common/program.h"
#include "worker/checkpoint/module_values.h"
#include "worker/collective/collective.h"
#include "worker/collective/mean.h"
#include "worker/data/batch_loader.h"

namespace ddprun::examples {

// `right_of(batch)` is how many samples of a batch are guessed right. Use the net itself in it, not
// DataParallel: there is nothing to sum, and ranks may have unequal batches.
template <typename Dataset, typename RightOf>
double accuracy_over(worker::Collective& ranks, const Dataset& held_out, std::size_t batch_size,
                     const RightOf& right_of) {
  const worker::DistributedSampler sampler(held_out.size(), ranks.world_size(), ranks.rank(),
                                           {.shuffle = false});
  worker::BatchLoader loader(held_out, sampler, batch_size, {.unpadded = true});
  worker::Mean right;
  for (const auto& batch : loader) right.add(right_of(batch), static_cast<double>(batch.size()));
  return right.over(ranks);
}

// Samples whose highest output is that of their target. outputs: [batch, classes]; targets: [batch] int64.
inline double count_right(const at::Tensor& outputs, const at::Tensor& targets) {
  return outputs.argmax(1).eq(targets).sum().item<double>();
}

// The last lines of an example: what its twin prints, too.
inline void say_result(const worker::Process& process, const torch::nn::Module& net,
                       double accuracy) {
  say(process, fmt::format("weights={:016x}\naccuracy={:.4f}", worker::checksum(net), accuracy));
}

}  // namespace ddprun::examples
