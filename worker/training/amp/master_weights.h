// A model that computes in 16 bits, and float32 copies of its weights: the masters. The optimizer
// steps these, so small steps are not lost in the rounding of a weight. The gradients travel in 16
// bits; with DataParallel::comm_hook(float32_sum_hook()) they travel and are added in float32.
//
//   MasterWeights masters(*net, at::kBFloat16);  // net computes in bfloat16 from now on
//   DataParallel parallel(net.ptr(), *process->collective);  // after it
//   torch::optim::AdamW optimizer(masters.parameters(), 1e-3);
//   …
//   loss.backward();
//   masters.step(parallel, optimizer);
//
// PyTorch's DistributedDataParallel does it the other way round (mixed_precision, private in 2.11).
// The module keeps float32, and casts before each forward(). Both train the same: weights in
// float32, rounded for each pass. A checkpoint needs the masters: parameters(), in the order of the
// module's. Owned by the program; used on the training thread.
#pragma once

#include <torch/nn/module.h>

#include <vector>

#include "worker/training/amp/loss_scaler.h"
#include "worker/training/data_parallel/data_parallel.h"
#include "worker/training/tensors/stepped_tensors.h"

namespace ddprun::worker {

class MasterWeights {
 public:
  // Rounds the module's float32 parameters to `dtype` (at::kBFloat16 or at::kHalf), once also its
  // buffers, unless they are integers or `keep_buffers`. Throws std::invalid_argument for another
  // dtype. Also if a parameter has a gradient already: then a DataParallel may know it by its old
  // dtype.
  MasterWeights(torch::nn::Module& module, at::ScalarType dtype, bool keep_buffers = false);

  // The masters of those parameters that train; what the optimizer is to get. Leaves, in float32.
  const std::vector<at::Tensor>& parameters() const { return masters_; }

  // Gradients to float32, parallel.step(optimizer), weights to 16 bits. The first call gives all
  // ranks rank 0's masters: all must call it. Throws as parallel.step() does, and
  // std::invalid_argument for an optimizer of the module's own parameters: its steps would be lost.
  template <typename Optimizer>
  void step(DataParallel& parallel, Optimizer& optimizer) {
    require_masters(stepped_tensors(optimizer));
    parallel.check_reduced();
    parallel.add_copies(masters_);
    take_gradients();
    parallel.step(optimizer);
    give_weights();
  }

  // With a loss scaler; whether the optimizer stepped. To clip in between, call take_gradients(),
  // unscale and clip parameters(), and then this.
  template <typename Optimizer>
  bool step(DataParallel& parallel, Optimizer& optimizer, LossScaler& scaler) {
    require_masters(stepped_tensors(optimizer));
    parallel.check_reduced();
    parallel.add_copies(masters_);
    if (!scaler.has_unscaled()) take_gradients();
    const bool has_stepped = scaler.step(parallel, optimizer);
    if (has_stepped) give_weights();
    return has_stepped;
  }

  // The parts of a step. Each master's `.grad` comes from its parameter's; it has none if that has
  // none. Each parameter comes from its master, also after the masters were loaded.
  void take_gradients();
  void give_weights();

 private:
  void require_masters(const std::vector<at::Tensor>& stepped) const;

  std::vector<at::Tensor> parameters_;  // of the module, in 16 bits
  std::vector<at::Tensor> masters_;
};

}  // namespace ddprun::worker
