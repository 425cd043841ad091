// SyncBatchNorm, ZeroOptimizer and ShardedParallel on one GPU, beside what torch has for one
// process there.
#include <ddprun/data_parallel.h>
#include <ddprun/sharded_parallel.h>
#include <ddprun/sync_batch_norm.h>
#include <ddprun/zero_optimizer.h>
#include <torch/optim.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/worker/counted_operations.h"
#include "tests/worker/gpu/one_gpu.h"
#include "worker/training/sharded/sharded_training.h"
#include "worker/training/sharded/units.h"

namespace ddprun::worker {
namespace {

constexpr int kSteps = 10;
constexpr double kTolerance = 1e-6;

class SyncBatchNormOnGpu : public OneGpu {
 protected:
  static constexpr std::int64_t kChannels = 5;
  static constexpr double kNormTolerance = 1e-5;  // torch's own sums are float32

  static at::Tensor batch() { return (torch::randn({6, kChannels, 7, 5}) * 2 + 1).to(at::kCUDA); }

  static void expect_as_plain(Collective& ranks) {
    const torch::nn::BatchNormOptions options(kChannels);
    torch::nn::BatchNorm2d plain(options);
    SyncBatchNorm norm(options, ranks);
    plain->to(at::kCUDA);
    norm->to(at::kCUDA);
    {
      const torch::NoGradGuard no_grad;
      const at::Tensor weight = torch::linspace(0.5, 2, kChannels).to(at::kCUDA);
      plain->weight.copy_(weight);
      norm->weight.copy_(weight);
    }
    torch::manual_seed(5);
    for (int step = 0; step < 3; ++step) {
      const at::Tensor values = batch();
      const at::Tensor factors = batch() * 0.1;
      const at::Tensor theirs = values.clone().requires_grad_();
      const at::Tensor ours = values.clone().requires_grad_();
      const at::Tensor expected = plain->forward(theirs);
      const at::Tensor output = norm->forward(ours);
      EXPECT_LE(distance(output, expected), kNormTolerance);
      (expected * factors).sum().backward();
      (output * factors).sum().backward();
      EXPECT_LE(distance(ours.grad(), theirs.grad()), kNormTolerance);
      EXPECT_LE(distance(norm->running_mean, plain->running_mean), kNormTolerance);
      EXPECT_LE(distance(norm->running_var, plain->running_var), kNormTolerance);
      // Sums over 210 values, of three passes.
      EXPECT_TRUE(torch::allclose(norm->weight.grad(), plain->weight.grad(), 1e-4, 1e-3));
      EXPECT_TRUE(torch::allclose(norm->bias.grad(), plain->bias.grad(), 1e-4, 1e-3));
    }
    plain->eval();
    norm->eval();
    const at::Tensor values = batch();
    EXPECT_LE(distance(norm->forward(values), plain->forward(values)), kNormTolerance);
  }
};

TEST_F(SyncBatchNormOnGpu, OfOneRankIsPlain) { expect_as_plain(ranks()); }

// A rank that is alone normalizes as torch does. Beside another one it sums: that is the code of
// many ranks.
TEST_F(SyncBatchNormOnGpu, BesideARankWithoutSamplesIsPlain) {
  BesideARankWithoutSamples two(ranks());
  expect_as_plain(two);
}

class OptimizersOnGpu : public OneGpu {
 protected:
  // Both get the same gradients: what differs is the form of the step.
  template <typename Optimizer>
  static void expect_as_on_the_cpu(const typename Optimizer::Options& options,
                                   const std::string& kernel) {
    auto there = small_net(), here = small_net(at::kCPU);
    Optimizer fused(there->parameters(), options), plain(here->parameters(), options);
    const auto ours = there->parameters();
    const auto others = here->parameters();
    const CountedOperations counted;
    for (int step = 0; step < kSteps; ++step) {
      fused.zero_grad();
      loss_of(there->forward(samples_of(step))).backward();
      for (std::size_t i = 0; i < ours.size(); ++i) others[i].mutable_grad() = ours[i].grad().cpu();
      fused.step();
      plain.step();
      for (std::size_t i = 0; i < ours.size(); ++i)
        ASSERT_LE(distance(ours[i], others[i].to(at::kCUDA)), kTolerance) << step << ", " << i;
    }
    EXPECT_EQ(counted.of(kernel), kSteps);
  }
};

TEST_F(OptimizersOnGpu, StepByOneKernelAsOnTheCpu) {
  expect_as_on_the_cpu<SGD>(SGD::Options(0.05).momentum(0.9).weight_decay(0.01), "_fused_sgd_");
  expect_as_on_the_cpu<Adam>(Adam::Options(1e-3).amsgrad(true), "_fused_adam_");
  expect_as_on_the_cpu<AdamW>(AdamW::Options(1e-3), "_fused_adamw_");
}

class ZeroOnGpu : public OneGpu {
 protected:
  // Both get the same gradients: what differs is the optimizer.
  template <typename Ours, typename Theirs>
  void expect_as_of_torch(const typename Ours::Options& options, bool scatters) {
    auto split_net = small_net(), plain = small_net();
    DataParallel parallel(split_net.ptr(), ranks());
    ZeroOptimizer<Ours> zero(split_net->parameters(), ranks(), options);
    if (scatters) zero.reduce_scatter(parallel);
    Theirs theirs(plain->parameters(), options);
    const auto ours = split_net->parameters();
    const auto others = plain->parameters();
    for (int step = 0; step < kSteps; ++step) {
      zero.zero_grad();
      loss_of(parallel.forward(split_net, samples_of(step))).backward();
      for (std::size_t i = 0; i < ours.size(); ++i)
        others[i].mutable_grad() = ours[i].grad().clone();
      parallel.step(zero);
      theirs.step();
      for (std::size_t i = 0; i < ours.size(); ++i)
        ASSERT_LE(distance(ours[i], others[i]), kTolerance) << "step " << step << " of " << i;
    }
    const auto begun = small_net();
    EXPECT_GT(distance(ours[0], begun->parameters()[0]), 100 * kTolerance) << "it has stepped";
  }
};

TEST_F(ZeroOnGpu, StepsAsTorchs) {
  for (const bool scatters : {false, true}) {
    expect_as_of_torch<Adam, torch::optim::Adam>(Adam::Options(1e-3), scatters);
    expect_as_of_torch<AdamW, torch::optim::AdamW>(AdamW::Options(1e-3), scatters);
    expect_as_of_torch<SGD, torch::optim::SGD>(SGD::Options(0.05).momentum(0.9), scatters);
  }
}

TEST_F(ZeroOnGpu, GivesItsStateAndTakesItBack) {
  auto net = small_net(), other = small_net();
  DataParallel parallel(net.ptr(), ranks()), resumed(other.ptr(), ranks());
  ZeroOptimizer<Adam> zero(net->parameters(), ranks(), Adam::Options(1e-2));
  ZeroOptimizer<Adam> fresh(other->parameters(), ranks(), Adam::Options(1e-2));
  const auto step = [](DataParallel& through, torch::nn::Sequential& of,
                       ZeroOptimizer<Adam>& optimizer, int pass) {
    optimizer.zero_grad();
    loss_of(through.forward(of, samples_of(pass))).backward();
    through.step(optimizer);
  };
  for (int pass = 0; pass < 3; ++pass) {
    step(parallel, net, zero, pass);
    step(resumed, other, fresh, pass);
  }
  Adam whole = zero.consolidate();
  EXPECT_EQ(whole.state().size(), net->parameters().size());
  for (const auto& [parameter, any_state] : whole.state()) {
    const auto& state = static_cast<const torch::optim::AdamParamState&>(*any_state);
    EXPECT_TRUE(state.exp_avg().is_cuda());
    EXPECT_EQ(state.step(), 3);
  }
  zero.load(std::move(whole));
  step(parallel, net, zero, 3);
  step(resumed, other, fresh, 3);
  for (std::size_t i = 0; i < net->parameters().size(); ++i)
    EXPECT_LE(distance(net->parameters()[i], other->parameters()[i]), kTolerance);
}

struct TwoUnitsImpl : torch::nn::Module {
  TwoUnitsImpl() {
    torch::manual_seed(7);
    first = register_module("first", torch::nn::Linear(20, 33));
    second = register_module("second", torch::nn::Linear(33, 4));
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::tanh(first(x))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(TwoUnits);

class ShardedOnGpu : public OneGpu {
 protected:
  static std::string refusal(const std::function<void()>& make) {
    try {
      make();
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  }

  void expect_as_plain(ShardedTraining::MakeUnits make) {
    TwoUnits plain, split_net;
    plain->to(at::kCUDA);
    split_net->to(at::kCUDA);
    ShardedTraining sharded(split_net.ptr(), ranks(), units_, make);
    const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
    torch::optim::SGD theirs(plain->parameters(), options), ours(sharded.shards(), options);
    const auto forward = [&](torch::nn::Linear& module, const at::Tensor& input) {
      const std::size_t unit = sharded.before_forward(*module);
      at::Tensor output = module->forward(input);
      sharded.after_forward(unit, {&output});
      return output;
    };
    for (int step = 0; step < kSteps; ++step) {
      theirs.zero_grad();
      ours.zero_grad();
      const at::Tensor x = samples_of(step);
      loss_of(plain->forward(x)).backward();
      loss_of(forward(split_net->second, torch::tanh(forward(split_net->first, x)))).backward();
      theirs.step();
      sharded.begin_step(sharded.shards());
      ours.step();
      sharded.end_step();
      const auto state = sharded.full_state_dict();
      for (const auto& item : plain->named_parameters())
        ASSERT_LE(distance(state[item.key()], item.value()), kTolerance) << item.key();
    }
    TwoUnits begun;
    begun->to(at::kCUDA);
    EXPECT_GT(distance(plain->first->weight, begun->first->weight), 100 * kTolerance);
  }

  const std::vector<std::string> units_{"first", "second"};
};

TEST_F(ShardedOnGpu, AWorldOfOneTrainsAsAPlainModule) { expect_as_plain(make_units); }

// The code of several ranks, in a world of one.
TEST_F(ShardedOnGpu, UnitsOnStreamsTrainAsAPlainModule) { expect_as_plain(make_stream_units); }

TEST_F(ShardedOnGpu, RefusesAModelThatWasLeftOnTheCpu) {
  TwoUnits net;
  EXPECT_EQ(refusal([&] { const ShardedParallel sharded(net.ptr(), ranks(), units_); }),
            "ShardedParallel: parameter 'first.weight' is on cpu, and 'nccl' has ranks on GPUs");
}

}  // namespace
}  // namespace ddprun::worker
