// When a step is captured, and what counts in it. The GPU's part is played here.
#include <ATen/core/grad_mode.h>
#include <ddprun/captured_step.h>
#include <ddprun/data_parallel.h>
#include <ddprun/optimizers.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/worker/forked_ranks.h"
#include "tests/worker/scripted_ranks.h"
#include "worker/training/graphs/step_runner.h"
#include "worker/training/zero/optimizer_steps.h"

namespace ddprun::worker {
namespace {

// Writes down what it is told. It captures on the stream of the ranks.
class PlayedGraph final : public StepGraph {
 public:
  PlayedGraph(std::vector<std::string>& told, ScriptedRanks& ranks) : told_(told), ranks_(ranks) {}
  void run(const Step& step) override {
    told_.emplace_back("run");
    step();
  }
  void capture(const Step& step) override {
    told_.emplace_back("capture");
    ranks_.captured = true;
    step();
    ranks_.captured = false;
  }
  void replay() override { told_.emplace_back("replay"); }

 private:
  std::vector<std::string>& told_;
  ScriptedRanks& ranks_;
};

Blob text(const std::string& words) {
  const auto bytes = std::as_bytes(std::span(words));
  return {bytes.begin(), bytes.end()};
}

TEST(CapturedStep, IsCapturedAfterItsWarmUps) {
  std::vector<std::string> told;
  int made = 0;
  ScriptedRanks ranks(std::vector<Blob>(2));
  StepRunner step([&made] { return torch::full({}, ++made); }, ranks, 2,
                  std::make_unique<PlayedGraph>(told, ranks));
  EXPECT_EQ(step.run().item<int>(), 1);
  EXPECT_EQ(step.run().item<int>(), 2);
  EXPECT_FALSE(step.is_captured());
  EXPECT_EQ(step.run().item<int>(), 3);
  EXPECT_TRUE(step.is_captured());
  EXPECT_EQ(step.run().item<int>(), 3) << "the tensor of the captured step";
  EXPECT_EQ(told, (std::vector<std::string>{"run", "run", "capture", "replay", "replay"}));
}

TEST(CapturedStep, EndsAllRanksIfOneCannotCapture) {
  std::vector<std::string> told;
  ScriptedRanks others({{}, text("it reads a number"), text("so does this")});
  StepRunner fine([] { return at::Tensor(); }, others, 0,
                  std::make_unique<PlayedGraph>(told, others));
  EXPECT_EQ(message_of([&] { fine.run(); }),
            "captured_step: rank 2 cannot capture its step: it reads a number");
  EXPECT_FALSE(fine.is_captured());
  EXPECT_EQ(message_of([&] { fine.run(); }),
            "captured_step: rank 2 cannot capture its step: it reads a number")
      << "it is not captured again";

  ScriptedRanks ranks(std::vector<Blob>(1));
  StepRunner broken([]() -> at::Tensor { throw std::runtime_error("no such layer"); }, ranks, 0,
                    std::make_unique<PlayedGraph>(told, ranks));
  EXPECT_EQ(message_of([&] { broken.run(); }),
            "captured_step: rank 0 cannot capture its step: no such layer");
  EXPECT_EQ(told, (std::vector<std::string>{"capture", "capture"}));
}

TEST(CapturedStep, SaysWhyItCannotBeCaptured) {
  const auto reason = [](const std::function<at::Tensor()>& step, bool on_another_gpu = false) {
    struct Elsewhere final : StepGraph {
      void run(const Step& /*step*/) override {}
      void capture(const Step& step) override { step(); }
      void replay() override {}
    };
    std::vector<std::string> told;
    ScriptedRanks ranks(std::vector<Blob>(1));
    std::unique_ptr<StepGraph> graph = std::make_unique<PlayedGraph>(told, ranks);
    if (on_another_gpu) graph = std::make_unique<Elsewhere>();
    StepRunner runner(step, ranks, 0, std::move(graph));
    const std::string message = message_of([&] { runner.run(); });
    const std::string_view head = "captured_step: rank 0 cannot capture its step: ";
    EXPECT_TRUE(message.starts_with(head)) << message;
    return message.substr(std::min(head.size(), message.size()));
  };
  const auto nothing = [] { return at::Tensor(); };
  EXPECT_EQ(reason(nothing, true), "the current device is not the collective's GPU");
  EXPECT_EQ(reason([]() -> at::Tensor { throw 7; }),
            "it throws something that is no std::exception");
  EXPECT_EQ(reason([]() -> at::Tensor { TORCH_CHECK(false, "no ", 8, " layers"); }), "no 8 layers");
  EXPECT_EQ(reason([]() -> at::Tensor { throw std::runtime_error(std::string(9000, 'x')); }),
            std::string(4096, 'x'));
}

// LibTorch's own count on the host.
template <typename Optimizer>
std::string why_refused(bool captured) {
  ScriptedRanks ranks(std::vector<Blob>{});
  torch::nn::Linear net(2, 1);
  DataParallel parallel(net.ptr(), ranks);
  Optimizer optimizer(net->parameters());
  parallel.forward(net, torch::ones({1, 2})).sum().backward();
  ranks.captured = captured;
  return message_of([&] { parallel.step(optimizer); });
}

TEST(CapturedStep, TakesNoOptimizerThatCountsOnTheHost) {
  const std::string refusal =
      "step() in a capture: this optimizer counts its steps on the host, and a graph repeats the "
      "number. Take ddprun::Adam or ddprun::AdamW";
  EXPECT_EQ(why_refused<torch::optim::Adam>(true), refusal);
  EXPECT_EQ(why_refused<torch::optim::AdamW>(true), refusal);
  EXPECT_EQ(why_refused<torch::optim::Adagrad>(true), refusal);
  EXPECT_EQ(why_refused<torch::optim::Adam>(false), "");
  EXPECT_EQ(why_refused<Adam>(true), "");
}

TEST(CapturedStep, RunsAsItIsOnACpu) {
  const auto alone = make_alone_collective();
  int made = 0;
  CapturedStep step = captured_step([&made] { return torch::full({}, ++made); }, *alone);
  for (int i = 1; i <= 20; ++i) EXPECT_EQ(step().item<int>(), i);
  EXPECT_FALSE(step.is_captured());
}

TEST(CapturedStep, WantsWarmUps) {
  const auto alone = make_alone_collective();
  EXPECT_EQ(message_of([&] { captured_step({}, *alone, {.warm_ups = 1}); }),
            "captured_step: warm_ups: 1 given, expected 2 or more");
}

// A model of one parameter, and the step of its optimizer with fused kernels, as on a GPU.
template <typename Optimizer>
struct Model {
  at::Tensor parameter = torch::ones({5}, torch::requires_grad());
  Optimizer optimizer{{parameter}, typename Optimizer::Options(0.1)};

  void step(int number) {
    const at::NoGradGuard no_grad;
    parameter.mutable_grad() = torch::arange(5).to(torch::kFloat) * 0.1 + number;
    step_parameters(optimizer, StepForm::kFused);
  }
};

template <typename State, typename Optimizer>
State& state_of(Model<Optimizer>& model) {
  return static_cast<State&>(*model.optimizer.state().at(model.parameter.unsafeGetTensorImpl()));
}

// One model counts on the host, one in a captured step. The played graph runs the step in the
// capture, and so counts it on the device. The replay counts it on the host.
template <typename Optimizer, typename State>
void expect_the_bits_of_the_host(int steps_at_once) {
  Model<Optimizer> plain;
  Model<Optimizer> counted;
  std::vector<std::string> told;
  int number = 0;
  ScriptedRanks ranks(std::vector<Blob>(1));
  StepRunner step(
      [&] {
        for (int i = 0; i < steps_at_once; ++i) counted.step(number + i);
        return at::Tensor();
      },
      ranks, 3, std::make_unique<PlayedGraph>(told, ranks));
  for (int i = 1; i <= 4; ++i) {
    number = i;
    for (int k = 0; k < steps_at_once; ++k) plain.step(number + k);
    step.run();
    EXPECT_TRUE(torch::equal(plain.parameter, counted.parameter)) << "step " << i;
    EXPECT_EQ(state_of<State>(counted).step(), i * steps_at_once);
  }
  EXPECT_EQ(told.back(), "replay");
  step.run();
  EXPECT_EQ(state_of<State>(counted).step(), 5 * steps_at_once) << "a replay is a step";
}

TEST(StepCounts, GiveAdamTheBitsOfStepsThatTheHostCounts) {
  expect_the_bits_of_the_host<Adam, torch::optim::AdamParamState>(1);
  expect_the_bits_of_the_host<AdamW, torch::optim::AdamWParamState>(1);
  expect_the_bits_of_the_host<Adam, torch::optim::AdamParamState>(2);
}

// A replay of the played graph steps nothing. So the count on the device is that of before it.
TEST(StepCounts, TakeStepsBetweenReplaysIn) {
  Model<Adam> model;
  StepCounts counts;
  const at::Tensor on_device = counts.of(model.optimizer, model.parameter, 0);
  const auto steps = [&] { return state_of<torch::optim::AdamParamState>(model).step(); };
  for (const auto mode : {StepCounts::Mode::kRuns, StepCounts::Mode::kIsCaptured}) {
    const StepCounts::Use use(counts, mode);
    model.step(1);
  }
  EXPECT_EQ(on_device.item<float>(), 2.0F);
  counts.before_replay();
  counts.replayed();
  EXPECT_EQ(steps(), 2);
  model.step(1);  // as it is, beside the graph
  model.step(1);
  counts.before_replay();
  EXPECT_EQ(on_device.item<float>(), 4.0F);
  counts.replayed();
  EXPECT_EQ(steps(), 5);
  model.optimizer.state().clear();
  counts.before_replay();
  counts.replayed();
  EXPECT_TRUE(model.optimizer.state().empty());
}

TEST(StepCounts, LeaveAloneWhatTheCapturedStepDoesNotStep) {
  Model<Adam> model;
  StepCounts counts;
  {
    const StepCounts::Use use(counts, StepCounts::Mode::kRuns);
    model.step(1);
  }
  counts.before_replay();
  counts.replayed();
  EXPECT_EQ(state_of<torch::optim::AdamParamState>(model).step(), 1);
}

TEST(StepCounts, FollowACheckpoint) {
  Model<Adam> plain;
  Model<Adam> counted;
  StepCounts counts;
  const auto both = [&](int number) {
    plain.step(number);
    const StepCounts::Use use(counts, StepCounts::Mode::kRuns);
    counted.step(number);
  };
  both(1);
  for (Model<Adam>* const model : {&plain, &counted})
    state_of<torch::optim::AdamParamState>(*model).step(40);
  both(2);
  both(3);
  state_of<torch::optim::AdamParamState>(counted).step(7);
  EXPECT_EQ(message_of([&] {
              const StepCounts::Use use(counts, StepCounts::Mode::kIsCaptured);
              counted.step(4);
            }),
            "captured_step: a count of Adam's steps that has changed since the last warm-up cannot "
            "be a part of the step that is captured");
  state_of<torch::optim::AdamParamState>(counted).step(42);
  EXPECT_TRUE(torch::equal(plain.parameter, counted.parameter));
  EXPECT_EQ(state_of<torch::optim::AdamParamState>(counted).step(), 42);
}

TEST(StepCounts, RefuseAFirstStepInACapture) {
  StepCounts counts;
  const StepCounts::Use use(counts, StepCounts::Mode::kIsCaptured);
  EXPECT_EQ(message_of([] { Model<Adam>().step(1); }),
            "captured_step: the first step of a parameter by Adam cannot be a part of the step "
            "that is captured");
  for (const StepForm form : {StepForm::kByDevice, StepForm::kFused}) {
    EXPECT_EQ(message_of([form] {
                at::Tensor parameter = torch::ones({5}, torch::requires_grad());
                SGD optimizer({parameter}, SGD::Options(0.1).momentum(0.9));
                parameter.mutable_grad() = torch::ones({5});
                const at::NoGradGuard no_grad;
                step_parameters(optimizer, form);
              }),
              "captured_step: the first step of a parameter with momentum cannot be a part of the "
              "step that is captured");
  }
  // One by one Adam counts on the host.
  EXPECT_EQ(message_of([] {
              at::Tensor parameter = torch::ones({5}, torch::requires_grad());
              Adam optimizer({parameter}, Adam::Options(0.1));
              parameter.mutable_grad() = torch::ones({5});
              optimizer.step();
            }),
            "captured_step: a parameter that no fused kernel of Adam's takes cannot be a part of "
            "the step that is captured");
}

TEST(StepCounts, AreThoseOfOneStep) {
  StepCounts counts;
  StepCounts others;
  const StepCounts::Use use(counts, StepCounts::Mode::kRuns);
  EXPECT_EQ(message_of([&] { const StepCounts::Use second(others, StepCounts::Mode::kRuns); }),
            "captured_step: one step runs inside another one");
  EXPECT_EQ(StepCounts::current(), &counts);
}

}  // namespace
}  // namespace ddprun::worker
