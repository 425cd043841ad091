// Training in 16 bits. Autocast computes in them, and GradScaler keeps small gradients from
// becoming zero. MasterWeights keeps float32 copies of the weights of a model in 16 bits.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <ddprun/collective.h>
#include <ddprun/data_parallel.h>
#include <ddprun/optimizers.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

namespace ddprun {

// A scope in which operations of this thread compute in 16 bits, if they gain from it. Those that
// need float32 keep it. It is Python's torch.autocast (torch 2.11, torch/amp/autocast_mode.py).
// Parameters and gradients stay float32, so DataParallel needs nothing else.
//
//   at::Tensor loss;
//   {
//     const Autocast autocast(at::kCPU);
//     loss = torch::nll_loss(parallel.forward(net, images), labels);
//   }
//   loss.backward();
//
// Use it on the thread that made it. Several may be nested; the inner one counts.
class Autocast {
 public:
  // Begins the scope for operations on `device`. `dtype`: at::kBFloat16 or at::kHalf; throws
  // std::invalid_argument for another one. `enabled` = false: the part inside computes as without
  // any.
  explicit Autocast(c10::DeviceType device, c10::ScalarType dtype = c10::ScalarType::BFloat16,
                    bool enabled = true);
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  Autocast(Autocast&&) = delete;
  Autocast& operator=(Autocast&&) = delete;
  // Ends the scope. The weights that were cast are let go with the outermost one.
  ~Autocast();

 private:
  c10::DeviceType device_;
  bool was_enabled_;
  c10::ScalarType dtype_before_;
};

// The scale of a GradScaler, and how it changes.
struct GradScalerOptions {
  double initial_scale = 65536.0;  // of the first pass; positive
  double growth_factor = 2.0;      // of the scale after growth_interval steps; at least 1
  double backoff_factor = 0.5;     // of the scale after a step with an infinity; below 1
  // Steps in a row without an infinity until the scale grows.
  std::int64_t growth_interval = 2000;
  // false: every call does what it would do without a scaler.
  bool enabled = true;
};

// The part of a GradScaler that a resumed run needs. Equal on all ranks.
struct GradScalerState {
  double scale = 0;                     // of the next pass
  std::int64_t steps_since_change = 0;  // without an infinity, in a row
};

// The scale that keeps small gradients of 16 bits from becoming zero. The loss is multiplied by a
// scale, and the averaged gradients are divided by it. A step with an infinity or NaN is left out.
// Rules and defaults are those of torch.amp.GradScaler (torch 2.11, torch/amp/grad_scaler.py).
//
//   GradScaler scaler;
//   …
//   scaler.scale(loss).backward();
//   scaler.step(parallel, optimizer);  // all ranks step, or none does
//
// All ranks hold the same averages after backward(), so all of them skip the same steps: nothing is
// sent. If each rank holds only a part of the gradients, give the collective. Then the ranks agree,
// by one small sum in each step. Owned by the program; used on the training thread.
class GradScaler {
 public:
  // Makes a scaler with the first scale. Throws std::invalid_argument for a scale or factor that is
  // not positive. Also for a growth below 1 or a backoff of 1 or more. `agreement`: the collective
  // by which ranks agree, as above; it must outlive this.
  explicit GradScaler(const GradScalerOptions& options = {}, Collective* agreement = nullptr);

  // Returns the loss times the scale, in the shape and on the device of the loss.
  at::Tensor scale(const at::Tensor& loss) const;

  // Divides the gradients by the scale, once in a step. Throws std::invalid_argument for gradients
  // of at::kHalf: what the scale has saved would become zero there (MasterWeights have float32).
  // step() does it, unless the program did so before, to clip them. Gradients may have several
  // dtypes. Returns whether all are finite, on all ranks that agree.
  bool unscale(const std::vector<at::Tensor>& parameters);

  // Calls parallel.step(optimizer) if all gradients are finite; then sets the scale for the next
  // pass. All ranks must call it. Throws as parallel.step() does, and std::invalid_argument for a
  // sharded optimizer in a Join. Returns whether the optimizer stepped.
  template <typename Optimizer>
  bool step(DataParallel& parallel, Optimizer& optimizer) {
    if constexpr (requires { optimizer.in_join(); }) {
      // A rank without batches would step its shard with gradients that are still scaled.
      if (options_.enabled && optimizer.in_join())
        throw std::invalid_argument(
            "GradScaler: a sharded optimizer cannot take scaled gradients while a Join lives: "
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

  // Sets the scale for the next pass: the last part of step(). An optimizer that steps otherwise
  // calls unscale(), steps if that said true, and then calls this.
  void update(bool is_finite);

  // Forgets unscale() if no step follows it: the gradients of the next pass are new ones, and
  // scaled.
  void give_up_step() { unscaled_ = UnscaleResult::kNo; }

  // Says whether unscale() was called since the last update() or give_up_step().
  bool has_unscaled() const { return unscaled_ != UnscaleResult::kNo; }
  // Returns the factor of the loss in the next pass.
  double scale() const { return scale_; }
  // Returns a copy of the state, for a checkpoint.
  GradScalerState state() const { return {scale_, steps_since_change_}; }
  // Goes on with an earlier state, the same on all ranks. Throws std::invalid_argument for a scale
  // that is not positive.
  void load(const GradScalerState& state);

 private:
  GradScalerOptions options_;
  Collective* agreement_;
  double scale_;
  std::int64_t steps_since_change_ = 0;
  // The result of this step; unset before unscale().
  enum class UnscaleResult { kNo, kFinite, kNotFinite };
  UnscaleResult unscaled_ = UnscaleResult::kNo;
};

// A model that computes in 16 bits, and float32 copies of its weights: the masters. The optimizer
// steps these, so small steps are not lost in the rounding of a weight. The gradients travel in 16
// bits; with DataParallel::comm_hook(float32_sum_hook()) they travel and are added in float32.
//
//   MasterWeights masters(*net, at::kBFloat16);  // net computes in bfloat16 from now on
//   DataParallel parallel(net.ptr(), *process.collective);  // after it
//   torch::optim::AdamW optimizer(masters.parameters(), 1e-3);
//   …
//   loss.backward();
//   masters.step(parallel, optimizer);
//
// PyTorch's DistributedDataParallel does it the other way round (mixed_precision, private in 2.11).
// The module keeps float32, and casts before each forward(). Both train the same: weights in
// float32, rounded for each pass. A checkpoint needs the masters: parameters(), in the order of the
// module's. Owned by the program; used on the training thread.
class MasterWeights {
 public:
  // Rounds the module's float32 parameters to `dtype` (at::kBFloat16 or at::kHalf), once also its
  // buffers, unless they are integers or `keep_buffers`. Throws std::invalid_argument for another
  // dtype. Also if a parameter has a gradient already: then a DataParallel may know it by its old
  // dtype.
  MasterWeights(torch::nn::Module& module, at::ScalarType dtype, bool keep_buffers = false);

  // Returns the masters of those parameters that train, in the module's order. The optimizer steps
  // them. They are leaves, in float32, in the parameters' shapes.
  const std::vector<at::Tensor>& parameters() const { return masters_; }

  // Takes the gradients to float32, steps, and rounds the weights to 16 bits. The first call gives
  // all ranks rank 0's masters: all must call it. Throws as parallel.step() does, and
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

  // Steps with a GradScaler, and returns whether the optimizer stepped. All ranks must call it. To
  // clip in between, call take_gradients(), unscale and clip parameters(), and then this.
  template <typename Optimizer>
  bool step(DataParallel& parallel, Optimizer& optimizer, GradScaler& scaler) {
    require_masters(stepped_tensors(optimizer));
    parallel.check_reduced();
    parallel.add_copies(masters_);
    if (!scaler.has_unscaled()) take_gradients();
    const bool has_stepped = scaler.step(parallel, optimizer);
    if (has_stepped) give_weights();
    return has_stepped;
  }

  // Sets each master's `.grad` from its parameter's; it has none if that has none. The first part
  // of a step.
  void take_gradients();
  // Rounds each master into its parameter. The last part of a step; also for masters that were
  // loaded.
  void give_weights();

 private:
  void require_masters(const std::vector<at::Tensor>& stepped) const;

  std::vector<at::Tensor> parameters_;  // of the module, in 16 bits
  std::vector<at::Tensor> masters_;
};

}  // namespace ddprun
