// Steps by fused kernels, as on GPUs, made on the CPU. They end as plain steps do, with the same
// state. The kernels round in another order, so there is a tolerance.
#include "worker/training/zero/fused_steps.h"

#include <ATen/core/grad_mode.h>
#include <ddprun/optimizers.h>
#include <gtest/gtest.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/worker/counted_operations.h"
#include "worker/checkpoint/optimizer_values.h"
#include "worker/training/zero/optimizer_steps.h"

namespace ddprun::worker {
namespace {

constexpr int kSteps = 4;

// Tensors as a model has them: a matrix, a row, one number, no number, and a matrix that is
// transposed.
std::vector<at::Tensor> model_of(at::ScalarType type) {
  torch::manual_seed(5);
  std::vector<at::Tensor> parameters{torch::randn({67, 31}, type), torch::randn({129}, type),
                                     torch::randn({}, type), torch::empty({0}, type),
                                     torch::randn({12, 40}, type).t()};
  for (at::Tensor& parameter : parameters) parameter.requires_grad_(true);
  return parameters;
}

// Gradients that lie in memory as the parameters do.
void give_gradients(const std::vector<at::Tensor>& parameters, int step) {
  torch::manual_seed(50 + step);
  for (const at::Tensor& parameter : parameters) {
    parameter.mutable_grad() = torch::empty_like(parameter, at::MemoryFormat::Preserve).detach();
    parameter.mutable_grad().copy_(torch::randn(parameter.sizes(), parameter.options()));
  }
}

template <typename Optimizer>
void fused_step(Optimizer& optimizer) {
  const at::NoGradGuard no_grad;
  step_parameters(optimizer, StepForm::kFused);
}

void expect_close(const std::vector<at::Tensor>& ours, const std::vector<at::Tensor>& plain) {
  ASSERT_EQ(ours.size(), plain.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    ASSERT_EQ(ours[i].scalar_type(), plain[i].scalar_type());
    const double tolerance = ours[i].scalar_type() == at::kDouble ? 1e-13 : 1e-5;
    EXPECT_TRUE(torch::allclose(ours[i], plain[i], tolerance, tolerance))
        << i << ": " << (ours[i] - plain[i]).abs().max();
  }
}

// The tensors of an optimizer's state, in the order of its parameters. Undefined ones are left out.
std::vector<at::Tensor> tensors_of(torch::optim::SGD& optimizer) {
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& parameter : stepped_tensors(optimizer)) {
    const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) continue;
    tensors.push_back(static_cast<torch::optim::SGDParamState&>(*found->second).momentum_buffer());
  }
  return tensors;
}

template <typename State>
std::vector<at::Tensor> tensors_of_adam(torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& parameter : stepped_tensors(optimizer)) {
    const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) continue;
    auto& state = static_cast<State&>(*found->second);
    tensors.push_back(torch::full({}, state.step(), at::kDouble));
    tensors.insert(tensors.end(), {state.exp_avg(), state.exp_avg_sq()});
    if (state.max_exp_avg_sq().defined()) tensors.push_back(state.max_exp_avg_sq());
  }
  return tensors;
}

std::vector<at::Tensor> tensors_of(torch::optim::Adam& optimizer) {
  return tensors_of_adam<torch::optim::AdamParamState>(optimizer);
}

std::vector<at::Tensor> tensors_of(torch::optim::AdamW& optimizer) {
  return tensors_of_adam<torch::optim::AdamWParamState>(optimizer);
}

template <typename Optimizer>
void expect_as_plain(const typename Optimizer::Options& options) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const auto mine = model_of(type), theirs = model_of(type);
    Optimizer ours(mine, options), plain(theirs, options);
    for (int step = 0; step < kSteps; ++step) {
      give_gradients(mine, step);
      give_gradients(theirs, step);
      fused_step(ours);
      plain.step();
      expect_close(mine, theirs);
      expect_close(tensors_of(ours), tensors_of(plain));
      for (std::size_t i = 0; i < mine.size(); ++i)
        EXPECT_TRUE(torch::equal(mine[i].grad(), theirs[i].grad())) << "gradients stay";
    }
    EXPECT_FALSE(torch::allclose(mine[0], model_of(type)[0])) << "it has stepped";
  }
}

TEST(FusedSteps, OfSgdEndAsPlainOnes) {
  expect_as_plain<SGD>(SGD::Options(0.1));
  expect_as_plain<SGD>(SGD::Options(0.1).weight_decay(0.01));
  expect_as_plain<SGD>(SGD::Options(0.1).momentum(0.9));
  expect_as_plain<SGD>(SGD::Options(0.1).momentum(0.9).dampening(0.2).weight_decay(0.01));
  expect_as_plain<SGD>(SGD::Options(0.1).momentum(0.8).nesterov(true).weight_decay(0.01));
}

TEST(FusedSteps, OfAdamEndAsPlainOnes) {
  expect_as_plain<Adam>(Adam::Options(0.01));
  expect_as_plain<Adam>(Adam::Options(0.01).betas({0.8, 0.95}).eps(1e-5).weight_decay(0.1));
  expect_as_plain<Adam>(Adam::Options(0.01).amsgrad(true));
  expect_as_plain<Adam>(Adam::Options(0.01).amsgrad(true).weight_decay(0.1));
}

TEST(FusedSteps, OfAdamWEndAsPlainOnes) {
  expect_as_plain<AdamW>(AdamW::Options(0.01).weight_decay(0));
  expect_as_plain<AdamW>(AdamW::Options(0.01).weight_decay(0.1));
  expect_as_plain<AdamW>(AdamW::Options(0.01).amsgrad(true).weight_decay(0.1));
}

template <typename Optimizer>
void expect_one_call(const typename Optimizer::Options& options, const std::string& kernel) {
  auto parameters = model_of(at::kFloat);
  const auto wide = model_of(at::kDouble);
  parameters.insert(parameters.end(), wide.begin(), wide.end());
  Optimizer optimizer(parameters, options);
  give_gradients(parameters, 0);
  fused_step(optimizer);  // makes the state
  const CountedOperations counted;
  fused_step(optimizer);
  EXPECT_EQ(counted.of(kernel), 2) << "one for each dtype";
  EXPECT_EQ(counted.of("add_") + counted.of("mul_") + counted.of("addcdiv_"), 0);
  EXPECT_LE(counted.of("full"), 2);
  optimizer.step();
  EXPECT_EQ(counted.of(kernel), 2) << "step() on the CPU has none";
}

TEST(FusedSteps, AreOneCallForEachDtype) {
  expect_one_call<SGD>(SGD::Options(0.1).momentum(0.9), "_fused_sgd_");
  expect_one_call<Adam>(Adam::Options(0.1).weight_decay(0.1), "_fused_adam_");
  expect_one_call<AdamW>(AdamW::Options(0.1), "_fused_adamw_");
}

// Leaves out the gradients of some parameters in some steps.
void give_some_gradients(const std::vector<at::Tensor>& parameters, int step) {
  give_gradients(parameters, step);
  parameters[3].mutable_grad() = at::Tensor();
  if (step == 0) parameters[0].mutable_grad() = at::Tensor();
  if (step == 2) parameters[1].mutable_grad() = at::Tensor();
}

template <typename Optimizer>
void expect_as_plain_with_gaps(const typename Optimizer::Options& options) {
  const auto mine = model_of(at::kDouble), theirs = model_of(at::kDouble);
  Optimizer ours(mine, options), plain(theirs, options);
  for (int step = 0; step < kSteps; ++step) {
    give_some_gradients(mine, step);
    give_some_gradients(theirs, step);
    fused_step(ours);
    plain.step();
    expect_close(mine, theirs);
    expect_close(tensors_of(ours), tensors_of(plain));
  }
  EXPECT_EQ(ours.state().size(), mine.size() - 1) << "one never had a gradient";
}

TEST(FusedSteps, LeaveParametersWithoutGradients) {
  expect_as_plain_with_gaps<SGD>(SGD::Options(0.1).momentum(0.9).dampening(0.5));
  expect_as_plain_with_gaps<Adam>(Adam::Options(0.01));
  expect_as_plain_with_gaps<AdamW>(AdamW::Options(0.01).amsgrad(true));
}

// Two groups with options of their own. The second has two parameters that no fused kernel takes:
// complex numbers, and one that lies in memory with gaps.
std::vector<torch::optim::OptimizerParamGroup> mixed_groups() {
  auto second = model_of(at::kDouble);
  torch::manual_seed(6);
  second.push_back(torch::randn({5, 3}, at::kComplexDouble).requires_grad_(true));
  second.push_back(
      torch::randn({8, 6}, at::kFloat).slice(1, 0, 6, 2).detach().requires_grad_(true));
  return {torch::optim::OptimizerParamGroup(model_of(at::kFloat)),
          torch::optim::OptimizerParamGroup(second)};
}

template <typename Optimizer>
void expect_as_plain_in_groups(const typename Optimizer::Options& options) {
  Optimizer ours(mixed_groups(), options), plain(mixed_groups(), options);
  for (torch::optim::Optimizer* each : {static_cast<torch::optim::Optimizer*>(&ours),
                                        static_cast<torch::optim::Optimizer*>(&plain)})
    each->param_groups()[1].options().set_lr(0.003);
  const auto mine = stepped_tensors(ours), theirs = stepped_tensors(plain);
  for (int step = 0; step < kSteps; ++step) {
    for (const auto& parameters : {mine, theirs}) {
      give_gradients(parameters, step);
      parameters[0].mutable_grad() = parameters[0].grad().t().contiguous().t();
    }
    const CountedOperations counted;
    fused_step(ours);
    EXPECT_GT(counted.of("view_as_real") + counted.of("add_"), 0) << "some are stepped one by one";
    plain.step();
  }
  expect_close(mine, theirs);
}

TEST(FusedSteps, LeaveToPlainOnesWhatTheKernelsDoNotTake) {
  expect_as_plain_in_groups<SGD>(SGD::Options(0.1).momentum(0.9));
  expect_as_plain_in_groups<Adam>(Adam::Options(0.01).weight_decay(0.1));
  expect_as_plain_in_groups<AdamW>(AdamW::Options(0.01));
}

TEST(FusedSteps, OfSgdTakeSparseGradients) {
  const auto mine = model_of(at::kDouble), theirs = model_of(at::kDouble);
  SGD ours(mine, SGD::Options(0.1)), plain(theirs, SGD::Options(0.1));
  for (const auto& parameters : {mine, theirs}) {
    give_gradients(parameters, 0);
    parameters[0].mutable_grad() = parameters[0].grad().to_sparse();
  }
  fused_step(ours);
  plain.step();
  expect_close(mine, theirs);
}

// A module that has a parameter twice gives it twice.
template <typename Optimizer>
void expect_two_steps(const typename Optimizer::Options& options) {
  auto mine = model_of(at::kDouble), theirs = model_of(at::kDouble);
  for (auto* const parameters : {&mine, &theirs}) parameters->push_back(parameters->front());
  Optimizer ours(mine, options), plain(theirs, options);
  for (int step = 0; step < kSteps; ++step) {
    give_gradients(mine, step);
    give_gradients(theirs, step);
    fused_step(ours);
    plain.step();
  }
  expect_close(mine, theirs);
  expect_close(tensors_of(ours), tensors_of(plain));
}

TEST(FusedSteps, StepAParameterTwiceThatIsThereTwice) {
  expect_two_steps<SGD>(SGD::Options(0.1).momentum(0.9).dampening(0.5));
  expect_two_steps<Adam>(Adam::Options(0.01));
}

template <typename Optimizer>
std::string archive_of(const Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream text;
  archive.save_to(text);
  return std::move(text).str();
}

// Goes on from `before`'s state, by an archive of LibTorch or by a checkpoint's value.
template <typename Optimizer>
void give_state(const Optimizer& before, Optimizer& after, bool by_archive) {
  if (!by_archive) {
    const auto state = optimizer_state(before);
    ASSERT_TRUE(state) << state.error().message();
    const auto loaded = load_optimizer_state(*state, after);
    ASSERT_TRUE(loaded) << loaded.error().message();
    return;
  }
  const std::string bytes = archive_of(before);
  torch::serialize::InputArchive archive;
  archive.load_from(bytes.data(), bytes.size());
  after.load(archive);
}

template <typename Optimizer>
void step_in(Optimizer& optimizer, bool is_fused, int step) {
  give_gradients(stepped_tensors(optimizer), step);
  if (is_fused) return fused_step(optimizer);
  optimizer.step();
}

// Steps with the one form, then with the other one, from the state that was saved between.
template <typename Optimizer>
void expect_state_fits_both(const typename Optimizer::Options& options) {
  for (const bool by_archive : {true, false}) {
    for (const bool fused_first : {true, false}) {
      const auto theirs = model_of(at::kDouble);
      Optimizer plain(theirs, options), before(model_of(at::kDouble), options);
      for (int step = 0; step < 2; ++step) {
        step_in(plain, false, step);
        step_in(before, fused_first, step);
      }
      const auto mine = stepped_tensors(before);
      Optimizer after(mine, options);
      give_state(before, after, by_archive);
      for (int step = 2; step < kSteps; ++step) {
        step_in(plain, false, step);
        step_in(after, !fused_first, step);
      }
      expect_close(mine, theirs);
      expect_close(tensors_of(after), tensors_of(plain));
    }
  }
}

TEST(FusedSteps, HaveTheStateOfPlainOnes) {
  expect_state_fits_both<SGD>(SGD::Options(0.1).momentum(0.9).dampening(0.5));
  expect_state_fits_both<Adam>(Adam::Options(0.01).amsgrad(true));
  expect_state_fits_both<AdamW>(AdamW::Options(0.01));
}

TEST(FusedSteps, OfAdamRefuseWhatPlainOnesRefuse) {
  const auto parameters = model_of(at::kFloat);
  Adam optimizer(parameters, Adam::Options(0.01));
  give_gradients(parameters, 0);
  parameters[4].mutable_grad() = parameters[4].grad().to_sparse();
  EXPECT_THROW(fused_step(optimizer), std::invalid_argument);
  expect_close(parameters, model_of(at::kFloat));
  give_gradients(parameters, 0);
  fused_step(optimizer);
  static_cast<Adam::Options&>(optimizer.param_groups()[0].options()).amsgrad(true);
  EXPECT_THROW(fused_step(optimizer), std::invalid_argument);
  for (const auto& [parameter, state] : optimizer.state())
    EXPECT_EQ(static_cast<const torch::optim::AdamParamState&>(*state).step(), 1);
}

TEST(FusedSteps, AreForGpusUnlessTheCallerSaysOtherwise) {
  const std::vector on_cpu{torch::ones({3})};
  EXPECT_FALSE(fits_fused(on_cpu, StepForm::kByDevice));
  EXPECT_TRUE(fits_fused(on_cpu, StepForm::kFused));
  const auto fits = [](const at::Tensor& a, const at::Tensor& b) {
    return fits_fused(std::vector{a, b}, StepForm::kFused);
  };
  EXPECT_TRUE(fits(torch::ones({3, 2}), torch::ones({3, 2})));
  EXPECT_TRUE(fits(torch::ones({3, 2}), {}));
  EXPECT_FALSE(fits(torch::ones({3, 2}), torch::ones({2, 3}).t())) << "strides";
  EXPECT_FALSE(fits(torch::ones({4}), torch::ones({5}))) << "sizes";
  EXPECT_FALSE(fits(torch::ones({4}), torch::ones({4}, at::kHalf))) << "dtypes";
  EXPECT_FALSE(fits(torch::ones({4}, at::kLong), {})) << "no real numbers";
  EXPECT_FALSE(fits(torch::ones({8}).slice(0, 0, 8, 2), {})) << "gaps";
}

}  // namespace
}  // namespace ddprun::worker
