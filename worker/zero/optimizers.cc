#include "worker/zero/optimizers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <memory>
#include <stdexcept>

#include "worker/tensors/wrapped_number.h"

namespace ddprun::worker {
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

void step_sgd(at::Tensor& parameter, const torch::optim::SGDOptions& options,
              torch::optim::Optimizer& optimizer) {
  at::Tensor gradient = parameter.grad();
  if (options.weight_decay() != 0) gradient = gradient.add(parameter, options.weight_decay());
  if (options.momentum() != 0) {
    auto& state = state_of<torch::optim::SGDParamState>(optimizer, parameter);
    at::Tensor& buffer = state.momentum_buffer();
    if (buffer.defined())
      buffer.mul_(wrapped_number(options.momentum())).add_(gradient, 1 - options.dampening());
    else
      buffer = gradient.detach().clone();
    gradient = options.nesterov() ? gradient.add(buffer, options.momentum()) : buffer;
  }
  parameter.add_(gradient, -options.lr());
}

at::Tensor as_real(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

template <typename State, typename Options>
void step_adam(const at::Tensor& parameter, const Options& options, bool decoupled,
               torch::optim::Optimizer& optimizer) {
  at::Tensor gradient = parameter.grad();
  if (gradient.layout() != at::kStrided)
    throw std::invalid_argument("Adam does not support sparse gradients");
  auto& state = state_of<State>(optimizer, parameter);
  if (!state.exp_avg().defined()) {
    state.exp_avg(at::zeros_like(parameter, at::MemoryFormat::Preserve));
    state.exp_avg_sq(at::zeros_like(parameter, at::MemoryFormat::Preserve));
    if (options.amsgrad())
      state.max_exp_avg_sq(at::zeros_like(parameter, at::MemoryFormat::Preserve));
  }
  state.step(state.step() + 1);
  const double decay = options.weight_decay();
  if (decay != 0 && decoupled) parameter.mul_(wrapped_number(1 - options.lr() * decay));
  if (decay != 0 && !decoupled) gradient = gradient.add(parameter, decay);
  gradient = as_real(gradient);
  const auto [beta1, beta2] = options.betas();
  const at::Tensor average = as_real(state.exp_avg());
  const at::Tensor squares = as_real(state.exp_avg_sq());
  average.lerp_(gradient, 1 - beta1);
  squares.mul_(wrapped_number(beta2)).addcmul_(gradient, gradient, 1 - beta2);
  const auto steps = static_cast<double>(state.step());
  const double step_size = options.lr() / (1 - std::pow(beta1, steps));
  // Not sqrt(): Python's ** is pow().
  const double root = std::pow(1 - std::pow(beta2, steps), 0.5);
  at::Tensor most = squares;
  if (options.amsgrad()) {
    most = as_real(state.max_exp_avg_sq());
    at::maximum_out(most, most, squares);
  }
  const at::Tensor denominator =
      most.sqrt().div(wrapped_number(root)).add_(wrapped_number(options.eps()));
  as_real(parameter).addcdiv_(average, denominator, -step_size);
}

template <typename Options, typename Step>
at::Tensor step_all(torch::optim::Optimizer& optimizer,
                    const torch::optim::Optimizer::LossClosure& closure, const Step& step) {
  const at::NoGradGuard no_grad;
  at::Tensor loss = evaluate(closure);
  for (auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const Options&>(group.options());
    for (at::Tensor& parameter : group.params()) {
      if (parameter.grad().defined()) step(parameter, options);
    }
  }
  return loss;
}

}  // namespace

at::Tensor SGD::step(LossClosure closure) {
  return step_all<Options>(*this, closure, [this](at::Tensor& parameter, const Options& options) {
    step_sgd(parameter, options, *this);
  });
}

at::Tensor Adam::step(LossClosure closure) {
  return step_all<Options>(*this, closure, [this](at::Tensor& parameter, const Options& options) {
    step_adam<torch::optim::AdamParamState>(parameter, options, false, *this);
  });
}

at::Tensor AdamW::step(LossClosure closure) {
  return step_all<Options>(*this, closure, [this](at::Tensor& parameter, const Options& options) {
    step_adam<torch::optim::AdamWParamState>(parameter, options, true, *this);
  });
}

}  // namespace ddprun::worker
