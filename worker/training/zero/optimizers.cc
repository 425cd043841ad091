#include <ATen/core/grad_mode.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros_like.h>
#include <ddprun/optimizers.h>

#include <array>
#include <cmath>
#include <memory>
#include <stdexcept>

#include "worker/training/tensors/wrapped_number.h"
#include "worker/training/zero/blocks.h"

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

void step_sgd(const at::Tensor& parameter, const torch::optim::SGDOptions& options,
              torch::optim::Optimizer& optimizer) {
  at::Tensor buffer;
  if (options.momentum() != 0) {
    at::Tensor& kept =
        state_of<torch::optim::SGDParamState>(optimizer, parameter).momentum_buffer();
    if (!kept.defined()) {
      kept = first_sgd(parameter, options);
      return;
    }
    buffer = kept;
  }
  in_blocks(std::array{parameter, parameter.grad(), buffer},
            [&options](const auto& block) { step_part(block[0], block[1], block[2], options); });
}

at::Tensor as_real(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

// The numbers that a step of Adam needs of one parameter, or of a part of it. `most`: undefined
// without amsgrad.
struct AdamNumbers {
  at::Tensor parameter, gradient, average, squares, most;
};

template <typename Options>
void step_part(AdamNumbers of, const Options& options, bool decoupled, double steps) {
  const double decay = options.weight_decay();
  if (decay != 0 && decoupled) of.parameter.mul_(wrapped_number(1 - options.lr() * decay));
  if (decay != 0 && !decoupled) of.gradient = of.gradient.add(of.parameter, decay);
  const at::Tensor gradient = as_real(of.gradient);
  const auto [beta1, beta2] = options.betas();
  const at::Tensor average = as_real(of.average);
  const at::Tensor squares = as_real(of.squares);
  average.lerp_(gradient, 1 - beta1);
  squares.mul_(wrapped_number(beta2)).addcmul_(gradient, gradient, 1 - beta2);
  const double step_size = options.lr() / (1 - std::pow(beta1, steps));
  // sqrt() would differ: Python's ** is pow().
  const double root = std::pow(1 - std::pow(beta2, steps), 0.5);
  at::Tensor most = squares;
  if (of.most.defined()) {
    most = as_real(of.most);
    at::maximum_out(most, most, squares);
  }
  const at::Tensor denominator =
      most.sqrt().div_(wrapped_number(root)).add_(wrapped_number(options.eps()));
  as_real(of.parameter).addcdiv_(average, denominator, -step_size);
}

template <typename State, typename Options>
void step_adam(const at::Tensor& parameter, const Options& options, bool decoupled,
               torch::optim::Optimizer& optimizer) {
  if (parameter.grad().layout() != at::kStrided)
    throw std::invalid_argument("Adam does not support sparse gradients");
  auto& state = state_of<State>(optimizer, parameter);
  if (!state.exp_avg().defined()) {
    state.exp_avg(at::zeros_like(parameter, at::MemoryFormat::Preserve));
    state.exp_avg_sq(at::zeros_like(parameter, at::MemoryFormat::Preserve));
    if (options.amsgrad())
      state.max_exp_avg_sq(at::zeros_like(parameter, at::MemoryFormat::Preserve));
  }
  const at::Tensor most = options.amsgrad() ? state.max_exp_avg_sq() : at::Tensor();
  if (options.amsgrad() && !most.defined())
    throw std::invalid_argument(
        "Adam: amsgrad is on, and the state of a parameter is of steps without it");
  state.step(state.step() + 1);
  const auto steps = static_cast<double>(state.step());
  in_blocks(
      std::array{parameter, parameter.grad(), state.exp_avg(), state.exp_avg_sq(), most},
      [&](const auto& block) {
        step_part({block[0], block[1], block[2], block[3], block[4]}, options, decoupled, steps);
      });
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

}  // namespace ddprun
