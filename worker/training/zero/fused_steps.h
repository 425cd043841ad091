// Steps of many parameters by LibTorch's fused kernels. One call steps all parameters of a device
// and a dtype. One by one each of them would need seven operations or more. Any thread; the caller
// records no gradients.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <map>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

namespace ddprun::worker {

// The way in which an optimizer steps its parameters.
enum class StepForm {
  kByDevice,  // fused on CUDA; elsewhere one by one, with Python's bits
  kFused,     // fused on each device, which shows on CPUs what CUDA does
};

// Returns whether a fused kernel can step a parameter. `tensors`: the parameter first, and then its
// gradient and state. The kernel takes real numbers that lie in memory alike, without gaps.
// Undefined tensors do not count.
bool fits_fused(std::span<const at::Tensor> tensors, StepForm form);

// Orders what one call takes: tensors of a device and of a dtype.
struct BatchOrder {
  using Kind = std::pair<at::Device, at::ScalarType>;
  bool operator()(const Kind& a, const Kind& b) const;
};

// A step of SGD for parameters of one group.
class FusedSgd {
 public:
  explicit FusedSgd(const torch::optim::SGDOptions& options) : options_(options) {}
  // Adds a parameter with a gradient. `buffer`: its momentum, null if the group has none; undefined
  // before its first step, which then makes it. It must live until step(). If the parameter waits
  // already, those that wait are stepped before.
  void add(const at::Tensor& parameter, at::Tensor* buffer);
  // Steps those that wait.
  void step();

 private:
  struct Batch {
    std::vector<at::Tensor> parameters, gradients;
    std::vector<at::Tensor*> buffers;
  };
  using Batches = std::map<BatchOrder::Kind, Batch, BatchOrder>;

  void step(const Batch& batch, bool is_first) const;

  const torch::optim::SGDOptions& options_;
  std::unordered_set<const at::TensorImpl*> waiting_;
  Batches first_, later_;
};

// The numbers that a step of Adam needs of one parameter, or of a part of it. `most`: undefined
// without amsgrad.
struct AdamNumbers {
  at::Tensor parameter, gradient, average, squares, most;
};

// The options of a group of Adam's or AdamW's.
struct AdamSettings {
  double lr, beta1, beta2, eps, weight_decay;
  bool amsgrad;
  bool is_decoupled;  // the weight decay, as in AdamW
};

// A step of Adam or AdamW for parameters of one group.
class FusedAdam {
 public:
  explicit FusedAdam(const AdamSettings& settings) : settings_(settings) {}
  // Steps those that wait, if the parameter is among them.
  void settle(const at::Tensor& parameter);
  // Adds a parameter. Call settle() with it before: it may not wait already. `steps`: the count of
  // its steps so far. step() adds one to it, so it must live until then. `count`: the same on the
  // parameter's device, where StepCounts keeps it.
  void add(const AdamNumbers& of, std::int64_t& steps, const at::Tensor& count = {});
  // Steps those that wait.
  void step();

 private:
  struct Batch {
    std::vector<at::Tensor> parameters, gradients, averages, squares, most;
    std::vector<std::int64_t*> steps;
    std::vector<at::Tensor> counts;  // of each, or none
  };

  void step(const Batch& batch, at::Device device) const;

  AdamSettings settings_;
  std::unordered_set<const at::TensorImpl*> waiting_;
  std::map<BatchOrder::Kind, Batch, BatchOrder> batches_;
};

}  // namespace ddprun::worker
