#include "worker/training/zero/step_counts.h"

#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <atomic>
#include <stdexcept>

namespace ddprun::worker {
namespace {

// The autograd thread may step, too.
std::atomic<StepCounts*>& used() {
  static std::atomic<StepCounts*> counts = nullptr;
  return counts;
}

// The state may be another one by now, or none.
void set_steps(torch::optim::Optimizer& optimizer, at::TensorImpl* parameter, std::int64_t steps) {
  const auto found = optimizer.state().find(parameter);
  if (found == optimizer.state().end()) return;
  if (auto* const adam = dynamic_cast<torch::optim::AdamParamState*>(found->second.get()))
    adam->step(steps);
  else if (auto* const adamw = dynamic_cast<torch::optim::AdamWParamState*>(found->second.get()))
    adamw->step(steps);
}

}  // namespace

StepCounts::Use::Use(StepCounts& counts, Mode mode) {
  StepCounts* none = nullptr;
  if (!used().compare_exchange_strong(none, &counts))
    throw std::logic_error("captured_step: one step runs inside another one");
  counts.mode_ = mode;
}

StepCounts::Use::~Use() { used() = nullptr; }

StepCounts* StepCounts::current() { return used(); }

void StepCounts::refuse_in_a_capture(const char* what) {
  const StepCounts* const counts = current();
  if (counts == nullptr || !counts->is_captured()) return;
  throw std::runtime_error(
      fmt::format("captured_step: {} cannot be a part of the step that is captured", what));
}

at::Tensor StepCounts::of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                          std::int64_t steps) {
  Count& count = counts_[{&optimizer, parameter.unsafeGetTensorImpl()}];
  if (!count.on_device.defined() || count.on_host != steps) {
    refuse_in_a_capture("the first step of a parameter by Adam");
    count.on_device = at::full({}, static_cast<double>(steps),
                               at::TensorOptions(at::kFloat).device(parameter.device()));
  }
  count.is_captured = is_captured();
  count.on_host = is_captured() ? steps : steps + 1;
  return count.on_device;
}

void StepCounts::replayed() {
  for (auto& [of, count] : counts_) {
    if (count.is_captured) set_steps(*of.first, of.second, ++count.on_host);
  }
}

}  // namespace ddprun::worker
