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

// Returns the count in a parameter's state. The state may be another one by now, or none: null.
std::int64_t* steps_of(torch::optim::Optimizer& optimizer, at::TensorImpl* parameter) {
  const auto found = optimizer.state().find(parameter);
  if (found == optimizer.state().end()) return nullptr;
  if (auto* const adam = dynamic_cast<torch::optim::AdamParamState*>(found->second.get()))
    return &adam->step();
  if (auto* const adamw = dynamic_cast<torch::optim::AdamWParamState*>(found->second.get()))
    return &adamw->step();
  return nullptr;
}

}  // namespace

StepCounts::Use::Use(StepCounts& counts, Mode mode) : counts_(counts) {
  StepCounts* none = nullptr;
  if (!used().compare_exchange_strong(none, &counts))
    throw std::logic_error("captured_step: one step runs inside another one");
  counts.mode_ = mode;
}

StepCounts::Use::~Use() {
  counts_.mode_ = Mode::kRuns;
  used() = nullptr;
}

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
  if (!count.on_device.defined()) {
    refuse_in_a_capture("the first step of a parameter by Adam");
    count.on_device = at::full({}, static_cast<double>(steps),
                               at::TensorOptions(at::kFloat).device(parameter.device()));
  } else if (count.on_host != steps) {
    refuse_in_a_capture("a count of Adam's steps that has changed since the last warm-up");
    count.on_device.fill_(static_cast<double>(steps));
  }
  count.on_host = is_captured() ? steps : steps + 1;
  count.in_graph = is_captured() ? count.in_graph + 1 : 0;
  return count.on_device;
}

void StepCounts::before_replay() {
  for (auto& [of, count] : counts_) {
    if (count.in_graph == 0) continue;
    const std::int64_t* const steps = steps_of(*of.first, of.second);
    if (steps == nullptr || *steps == count.on_host) continue;
    count.on_host = *steps;
    count.on_device.fill_(static_cast<double>(*steps));
  }
}

void StepCounts::replayed() {
  for (auto& [of, count] : counts_) {
    if (count.in_graph == 0) continue;
    count.on_host += count.in_graph;
    if (std::int64_t* const steps = steps_of(*of.first, of.second); steps != nullptr)
      *steps = count.on_host;
  }
}

}  // namespace ddprun::worker
