#include "worker/training/zero/fused_steps.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <tuple>

#include "worker/training/zero/step_counts.h"

namespace ddprun::worker {
namespace {

bool has_fused_kernel(at::ScalarType type) {
  return type == at::kFloat || type == at::kDouble || type == at::kHalf || type == at::kBFloat16;
}

// The counts of steps as the kernels want them: numbers of float32 on the parameters' device.
// Parameters with equal counts share one. Nothing is copied from the host.
std::vector<at::Tensor> counts_on(at::Device device, const std::vector<std::int64_t*>& steps) {
  std::map<std::int64_t, at::Tensor> made;
  std::vector<at::Tensor> counts;
  for (const std::int64_t* const before : steps) {
    at::Tensor& count = made[*before];
    if (!count.defined()) {
      const auto now = static_cast<double>(*before + 1);
      count = at::full({}, now, at::TensorOptions(at::kFloat).device(device));
    }
    counts.push_back(count);
  }
  return counts;
}

}  // namespace

bool fits_fused(std::span<const at::Tensor> tensors, StepForm form) {
  const at::Tensor& first = tensors.front();
  if (form == StepForm::kByDevice && !first.is_cuda()) return false;
  if (!has_fused_kernel(first.scalar_type()) || first.layout() != at::kStrided ||
      !first.is_non_overlapping_and_dense())
    return false;
  return std::ranges::all_of(tensors, [&first](const at::Tensor& tensor) {
    return !tensor.defined() ||
           (tensor.device() == first.device() && tensor.scalar_type() == first.scalar_type() &&
            tensor.layout() == at::kStrided && tensor.sizes() == first.sizes() &&
            tensor.strides() == first.strides());
  });
}

bool BatchOrder::operator()(const Kind& a, const Kind& b) const {
  const auto key = [](const Kind& kind) {
    return std::tuple(kind.first.type(), kind.first.index(), kind.second);
  };
  return key(a) < key(b);
}

void FusedSgd::add(const at::Tensor& parameter, at::Tensor* buffer) {
  if (waiting_.contains(parameter.unsafeGetTensorImpl())) step();
  waiting_.insert(parameter.unsafeGetTensorImpl());
  const bool is_first = buffer != nullptr && !buffer->defined();
  Batch& batch = (is_first ? first_ : later_)[{parameter.device(), parameter.scalar_type()}];
  batch.parameters.push_back(parameter);
  batch.gradients.push_back(parameter.grad());
  if (buffer != nullptr) batch.buffers.push_back(buffer);
}

void FusedSgd::step() {
  for (const auto& [kind, batch] : first_) step(batch, true);
  for (const auto& [kind, batch] : later_) step(batch, false);
  first_.clear();
  later_.clear();
  waiting_.clear();
}

void FusedSgd::step(const Batch& batch, bool is_first) const {
  std::vector<at::Tensor> buffers;
  for (std::size_t i = 0; i < batch.buffers.size(); ++i)
    buffers.push_back(is_first ? at::empty_like(batch.parameters[i], {}, at::MemoryFormat::Preserve)
                               : *batch.buffers[i]);
  at::_fused_sgd_(batch.parameters, batch.gradients, buffers, options_.weight_decay(),
                  options_.momentum(), options_.lr(), options_.dampening(), options_.nesterov(),
                  /*maximize=*/false, is_first);
  if (!is_first) return;
  for (std::size_t i = 0; i < buffers.size(); ++i) *batch.buffers[i] = buffers[i];
}

void FusedAdam::settle(const at::Tensor& parameter) {
  if (waiting_.contains(parameter.unsafeGetTensorImpl())) step();
}

void FusedAdam::add(const AdamNumbers& of, std::int64_t& steps, const at::Tensor& count) {
  waiting_.insert(of.parameter.unsafeGetTensorImpl());
  Batch& batch = batches_[{of.parameter.device(), of.parameter.scalar_type()}];
  batch.parameters.push_back(of.parameter);
  batch.gradients.push_back(of.gradient);
  batch.averages.push_back(of.average);
  batch.squares.push_back(of.squares);
  if (of.most.defined()) batch.most.push_back(of.most);
  batch.steps.push_back(&steps);
  if (count.defined()) batch.counts.push_back(count);
}

void FusedAdam::step() {
  for (const auto& [kind, batch] : batches_) step(batch, kind.first);
  batches_.clear();
  waiting_.clear();
}

void FusedAdam::step(const Batch& batch, at::Device device) const {
  const bool is_kept = !batch.counts.empty();
  const auto counts = is_kept ? batch.counts : counts_on(device, batch.steps);
  if (is_kept) at::_foreach_add_(counts, 1);
  if (settings_.is_decoupled) {
    at::_fused_adamw_(batch.parameters, batch.gradients, batch.averages, batch.squares, batch.most,
                      counts, settings_.lr, settings_.beta1, settings_.beta2,
                      settings_.weight_decay, settings_.eps, settings_.amsgrad, /*maximize=*/false);
  } else {
    at::_fused_adam_(batch.parameters, batch.gradients, batch.averages, batch.squares, batch.most,
                     counts, settings_.lr, settings_.beta1, settings_.beta2, settings_.weight_decay,
                     settings_.eps, settings_.amsgrad, /*maximize=*/false);
  }
  // A capture steps nothing.
  if (is_kept && StepCounts::current()->is_captured()) return;
  for (std::int64_t* const steps : batch.steps) ++*steps;
}

}  // namespace ddprun::worker
