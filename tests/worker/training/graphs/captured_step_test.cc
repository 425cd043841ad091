// When a step is captured, and what counts in it. The GPU's part is played here.
#include <ATen/core/grad_mode.h>
#include <ddprun/captured_step.h>
#include <ddprun/optimizers.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/worker/forked_ranks.h"
#include "tests/worker/scripted_ranks.h"
#include "worker/training/graphs/step_runner.h"
#include "worker/training/zero/optimizer_steps.h"

namespace ddprun::worker {
namespace {

// Writes down what it is told.
class PlayedGraph final : public StepGraph {
 public:
  explicit PlayedGraph(std::vector<std::string>& told) : told_(told) {}
  void run(const Step& step) override {
    told_.emplace_back("run");
    step();
  }
  void capture(const Step& step) override {
    told_.emplace_back("capture");
    step();
  }
  void replay() override { told_.emplace_back("replay"); }

 private:
  std::vector<std::string>& told_;
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
                  std::make_unique<PlayedGraph>(told));
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
  StepRunner fine([] { return at::Tensor(); }, others, 0, std::make_unique<PlayedGraph>(told));
  EXPECT_EQ(message_of([&] { fine.run(); }),
            "captured_step: rank 2 cannot capture its step: it reads a number");
  EXPECT_FALSE(fine.is_captured());

  ScriptedRanks ranks(std::vector<Blob>(1));
  StepRunner broken([]() -> at::Tensor { throw std::runtime_error("no such layer"); }, ranks, 0,
                    std::make_unique<PlayedGraph>(told));
  EXPECT_EQ(message_of([&] { broken.run(); }),
            "captured_step: rank 0 cannot capture its step: no such layer");
  EXPECT_EQ(told, (std::vector<std::string>{"capture", "capture"}));
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

std::int64_t steps_of(Adam& optimizer, const at::Tensor& parameter) {
  const auto& state = *optimizer.state().at(parameter.unsafeGetTensorImpl());
  return static_cast<const torch::optim::AdamParamState&>(state).step();
}

// The played graph runs the step in the capture, and so counts it on the device. The replay counts
// it on the host.
TEST(StepCounts, GiveAdamTheBitsOfStepsThatTheHostCounts) {
  Model<Adam> plain;
  Model<Adam> counted;
  std::vector<std::string> told;
  int number = 0;
  ScriptedRanks ranks(std::vector<Blob>(1));
  StepRunner step(
      [&] {
        counted.step(++number);
        return at::Tensor();
      },
      ranks, 3, std::make_unique<PlayedGraph>(told));
  for (int i = 1; i <= 4; ++i) {
    plain.step(i);
    step.run();
    EXPECT_TRUE(torch::equal(plain.parameter, counted.parameter)) << "step " << i;
    EXPECT_EQ(steps_of(counted.optimizer, counted.parameter), i);
  }
  EXPECT_EQ(told.back(), "replay");
  step.run();
  EXPECT_EQ(steps_of(counted.optimizer, counted.parameter), 5) << "a replay is a step";
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
  for (Model<Adam>* const model : {&plain, &counted}) {
    auto& state = *model->optimizer.state().at(model->parameter.unsafeGetTensorImpl());
    static_cast<torch::optim::AdamParamState&>(state).step(40);
  }
  both(2);
  both(3);
  EXPECT_TRUE(torch::equal(plain.parameter, counted.parameter));
  EXPECT_EQ(steps_of(counted.optimizer, counted.parameter), 42);
}

TEST(StepCounts, RefuseAFirstStepInACapture) {
  StepCounts counts;
  const StepCounts::Use use(counts, StepCounts::Mode::kIsCaptured);
  EXPECT_EQ(message_of([] { Model<Adam>().step(1); }),
            "captured_step: the first step of a parameter by Adam cannot be a part of the step "
            "that is captured");
  EXPECT_EQ(message_of([] {
              at::Tensor parameter = torch::ones({5}, torch::requires_grad());
              SGD optimizer({parameter}, SGD::Options(0.1).momentum(0.9));
              parameter.mutable_grad() = torch::ones({5});
              optimizer.step();
            }),
            "captured_step: the first step of a parameter with momentum cannot be a part of the "
            "step that is captured");
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
