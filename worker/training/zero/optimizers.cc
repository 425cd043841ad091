#include <ATen/core/grad_mode.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros_like.h>
#include <ddprun/optimizers.h>

#include <array>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <tuple>

#include "worker/training/tensors/wrapped_number.h"
#include "worker/training/zero/blocks.h"
#include "worker/training/zero/optimizer_steps.h"
#include "worker/training/zero/step_counts.h"

namespace ddprun {

using namespace worker;

namespace {

at::Tensor evaluate(const torch::optim::Optimizer::LossClosure& closure) {
  if (closure == nullptr) return {};
  const at::AutoGradMode recording(true);
  return closure();
}

// The parameter's state; a new one where it has none.
template <typename State>
State& state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  auto& state = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (!state) state = std::make_unique<State>();
  return static_cast<State&>(*state);
}

// Steps one part of a parameter. `buffer` is undefined without momentum.
void step_part(const at::Tensor& parameter, at::Tensor gradient, const at::Tensor& buffer,
               const torch::optim::SGDOptions& options) {
  if (options.weight_decay() != 0) gradient = gradient.add(parameter, options.weight_decay());
  if (buffer.defined()) {
    buffer.mul_(wrapped_number(options.momentum())).add_(gradient, 1 - options.dampening());
    gradient = options.nesterov() ? gradient.add(buffer, options.momentum()) : buffer;
  }
  parameter.add_(gradient, -options.lr());
}

// The first step with momentum: the gradient itself is the buffer, whatever the dampening.
at::Tensor first_sgd(const at::Tensor& parameter, const torch::optim::SGDOptions& options) {
  at::Tensor gradient = parameter.grad();
  if (options.weight_decay() != 0) gradient = gradient.add(parameter, options.weight_decay());
  at::Tensor buffer = gradient.detach().clone();
  if (options.nesterov()) gradient = gradient.add(buffer, options.momentum());
  parameter.add_(gradient, -options.lr());
  return buffer;
}

// Steps one parameter by itself. `buffer`: null without momentum; undefined before its first step.
void step_sgd(const at::Tensor& parameter, const torch::optim::SGDOptions& options,
              at::Tensor* buffer) {
  if (buffer != nullptr && !buffer->defined()) {
    *buffer = first_sgd(parameter, options);
    return;
  }
  in_blocks(std::array{parameter, parameter.grad(), buffer == nullptr ? at::Tensor() : *buffer},
            [&options](const auto& block) { step_part(block[0], block[1], block[2], options); });
}

at::Tensor as_real(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

void step_part(AdamNumbers of, const AdamSettings& with, std::int64_t count) {
  const auto steps = static_cast<double>(count);
  const double decay = with.weight_decay;
  if (decay != 0 && with.is_decoupled) of.parameter.mul_(wrapped_number(1 - with.lr * decay));
  if (decay != 0 && !with.is_decoupled) of.gradient = of.gradient.add(of.parameter, decay);
  const at::Tensor gradient = as_real(of.gradient);
  const at::Tensor average = as_real(of.average);
  const at::Tensor squares = as_real(of.squares);
  average.lerp_(gradient, 1 - with.beta1);
  squares.mul_(wrapped_number(with.beta2)).addcmul_(gradient, gradient, 1 - with.beta2);
  const double step_size = with.lr / (1 - std::pow(with.beta1, steps));
  // sqrt() would differ: Python's ** is pow().
  const double root = std::pow(1 - std::pow(with.beta2, steps), 0.5);
  at::Tensor most = squares;
  if (of.most.defined()) {
    most = as_real(of.most);
    at::maximum_out(most, most, squares);
  }
  const at::Tensor denominator =
      most.sqrt().div_(wrapped_number(root)).add_(wrapped_number(with.eps));
  as_real(of.parameter).addcdiv_(average, denominator, -step_size);
}

// Returns what a step needs of a parameter. Makes its state if it has none.
template <typename State>
AdamNumbers numbers_of(const at::Tensor& parameter, State& state, bool amsgrad) {
  if (!state.exp_avg().defined()) {
    state.exp_avg(at::zeros_like(parameter, at::MemoryFormat::Preserve));
    state.exp_avg_sq(at::zeros_like(parameter, at::MemoryFormat::Preserve));
    if (amsgrad) state.max_exp_avg_sq(at::zeros_like(parameter, at::MemoryFormat::Preserve));
  }
  const at::Tensor most = amsgrad ? state.max_exp_avg_sq() : at::Tensor();
  if (amsgrad && !most.defined())
    throw std::invalid_argument(
        "Adam: amsgrad is on, and the state of a parameter is of steps without it");
  return {parameter, parameter.grad(), state.exp_avg(), state.exp_avg_sq(), most};
}

template <typename Options>
AdamSettings settings_of(const Options& options, bool is_decoupled) {
  const auto [beta1, beta2] = options.betas();
  return {options.lr(),      beta1,       beta2, options.eps(), options.weight_decay(),
          options.amsgrad(), is_decoupled};
}

// The count of a parameter's steps on its device. Undefined where the host alone counts.
at::Tensor count_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                    std::int64_t steps) {
  StepCounts* const counts = StepCounts::current();
  return counts == nullptr ? at::Tensor() : counts->of(optimizer, parameter, steps);
}

// Steps one parameter, or adds it to those that wait in `fused`.
template <typename State>
void step_adam(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
               const AdamSettings& settings, StepForm form, FusedAdam& fused) {
  if (parameter.grad().layout() != at::kStrided)
    throw std::invalid_argument("Adam does not support sparse gradients");
  auto& state = state_of<State>(optimizer, parameter);
  const AdamNumbers of = numbers_of(parameter, state, settings.amsgrad);
  const std::array all{of.parameter, of.gradient, of.average, of.squares, of.most};
  if (fits_fused(all, form)) {
    fused.settle(parameter);
    const at::Tensor count = count_of(optimizer, parameter, state.step());
    return fused.add(of, state.step(), count);
  }
  StepCounts::refuse_in_a_capture("a parameter that no fused kernel of Adam's takes");
  state.step(state.step() + 1);
  in_blocks(all, [&](const auto& block) {
    step_part({block[0], block[1], block[2], block[3], block[4]}, settings, state.step());
  });
}

template <typename State, typename Options>
void step_all_adam(torch::optim::Optimizer& optimizer, bool is_decoupled, StepForm form) {
  for (auto& group : optimizer.param_groups()) {
    const AdamSettings settings =
        settings_of(static_cast<const Options&>(group.options()), is_decoupled);
    FusedAdam fused(settings);
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.grad().defined()) step_adam<State>(optimizer, parameter, settings, form, fused);
    }
    fused.step();
  }
}

void step_group(torch::optim::SGD& optimizer, torch::optim::OptimizerParamGroup& group,
                StepForm form) {
  const auto& options = static_cast<const torch::optim::SGDOptions&>(group.options());
  FusedSgd fused(options);
  for (const at::Tensor& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    at::Tensor* buffer = nullptr;
    if (options.momentum() != 0)
      buffer = &state_of<torch::optim::SGDParamState>(optimizer, parameter).momentum_buffer();
    if (buffer != nullptr && !buffer->defined())
      StepCounts::refuse_in_a_capture("the first step of a parameter with momentum");
    const std::array all{parameter, parameter.grad(), buffer == nullptr ? at::Tensor() : *buffer};
    if (fits_fused(all, form)) {
      fused.add(parameter, buffer);
    } else {
      step_sgd(parameter, options, buffer);
    }
  }
  fused.step();
}

// `step` steps all parameters.
template <typename Step>
at::Tensor step_with(const torch::optim::Optimizer::LossClosure& closure, const Step& step) {
  const at::NoGradGuard no_grad;
  at::Tensor loss = evaluate(closure);
  step();
  return loss;
}

}  // namespace

void worker::step_parameters(torch::optim::SGD& optimizer, StepForm form) {
  for (auto& group : optimizer.param_groups()) step_group(optimizer, group, form);
}

void worker::step_parameters(torch::optim::Adam& optimizer, StepForm form) {
  step_all_adam<torch::optim::AdamParamState, torch::optim::AdamOptions>(optimizer, false, form);
}

void worker::step_parameters(torch::optim::AdamW& optimizer, StepForm form) {
  step_all_adam<torch::optim::AdamWParamState, torch::optim::AdamWOptions>(optimizer, true, form);
}

at::Tensor SGD::step(LossClosure closure) {
  return step_with(closure, [this] { step_parameters(*this, StepForm::kByDevice); });
}

at::Tensor Adam::step(LossClosure closure) {
  return step_with(closure, [this] { step_parameters(*this, StepForm::kByDevice); });
}

at::Tensor AdamW::step(LossClosure closure) {
  return step_with(closure, [this] { step_parameters(*this, StepForm::kByDevice); });
}

}  // namespace ddprun
