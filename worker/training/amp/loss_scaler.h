// Keeps small gradients of 16 bits from becoming zero. The loss is multiplied by a scale, and the
// averaged gradients are divided by it. A step with an infinity or NaN is left out. Rules and
// defaults are those of torch.amp.GradScaler (torch 2.11, torch/amp/grad_scaler.py).
//
//   LossScaler scaler;
//   …
//   scaler.scale(loss).backward();
//   scaler.step(parallel, optimizer);  // all ranks step, or none does
//
// All ranks hold the same averages after backward(), so all of them skip the same steps: nothing is
// sent. If each rank holds only a part of the gradients, give the collective. Then the ranks agree,
// by one small sum in each step. Owned by the program; used on the training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "worker/collective/core/collective.h"
#include "worker/training/data_parallel/data_parallel.h"
#include "worker/training/tensors/stepped_tensors.h"

namespace ddprun::worker {

struct LossScalerOptions {
  double initial_scale = 65536.0;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  // Steps in a row without an infinity until the scale grows.
  std::int64_t growth_interval = 2000;
  // false: every call does what it would do without a scaler.
  bool enabled = true;
};

// All that a resumed run needs.
struct LossScalerState {
  double scale = 0;
  std::int64_t steps_since_change = 0;
};

class LossScaler {
 public:
  // Throws std::invalid_argument for a scale or factor that is not positive. Also for a growth
  // below 1 or a backoff of 1 or more. `agreement`: see above; it must outlive this.
  explicit LossScaler(const LossScalerOptions& options = {}, Collective* agreement = nullptr);

  // The loss times the scale.
  at::Tensor scale(const at::Tensor& loss) const;

  // Divides the gradients by the scale, once in a step. Throws std::invalid_argument for gradients
  // of at::kHalf: what the scale has saved would become zero there (MasterWeights have float32).
  // step() does it, unless the program did so before, to clip them. Gradients may have several
  // dtypes. Returns whether all are finite, on all ranks that agree.
  bool unscale(const std::vector<at::Tensor>& parameters);

  // parallel.step(optimizer), if all gradients are finite; then the scale for the next pass. Throws
  // as parallel.step() does, and std::invalid_argument for a sharded optimizer in a Join. Returns
  // whether the optimizer stepped.
  template <typename Optimizer>
  bool step(DataParallel& parallel, Optimizer& optimizer) {
    if constexpr (requires { optimizer.in_join(); }) {
      // A rank without batches would step its shard with gradients that are still scaled.
      if (options_.enabled && optimizer.in_join())
        throw std::invalid_argument(
            "LossScaler: a sharded optimizer cannot take scaled gradients while a Join lives: "
            "leave the Join, the scaler or the shards");
    }
    parallel.check_reduced();
    const bool is_finite = unscale(stepped_tensors(optimizer));
    try {
      if (is_finite) parallel.step(optimizer);
    } catch (...) {
      give_up_step();
      throw;
    }
    update(is_finite);
    return is_finite;
  }

  // The same in parts, for an optimizer that steps otherwise: unscale(), a step if that said true,
  // update().
  void update(bool is_finite);

  // After unscale(), where there will be no step: the gradients of the next pass are new ones, and
  // scaled.
  void give_up_step() { unscaled_ = Unscaled::kNo; }

  // Whether unscale() was called since the last update() or give_up_step().
  bool has_unscaled() const { return unscaled_ != Unscaled::kNo; }
  double scale() const { return scale_; }
  LossScalerState state() const { return {scale_, steps_since_change_}; }
  // Throws std::invalid_argument for a scale that is not positive.
  void load(const LossScalerState& state);

 private:
  LossScalerOptions options_;
  Collective* agreement_;
  double scale_;
  std::int64_t steps_since_change_ = 0;
  // The result of this step; unset before unscale().
  enum class Unscaled { kNo, kFinite, kNotFinite };
  Unscaled unscaled_ = Unscaled::kNo;
};

}  // namespace ddprun::worker
