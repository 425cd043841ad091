// The order of a stage's actions, alone and beside its neighbours', where a send waits for its
// receive.
#include "worker/training/pipeline/pipeline_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ddprun::worker {
namespace {

using Kind = PipelineAction::Kind;
using enum PipelineOrder;
using Actions = std::vector<PipelineAction>;

constexpr int kStagesMost = 9, kMicroBatchesMost = 17;

// "<0 F0 >0": receives, computes and sends; in the other direction "}0 B0 {0".
std::string text_of(const Actions& actions) {
  static constexpr std::array kSigns{'<', 'F', '>', '}', 'B', '{'};
  std::string text;
  for (const auto& [kind, micro_batch] : actions)
    text += (text.empty() ? "" : " ") +
            (kSigns.at(static_cast<std::size_t>(kind)) + std::to_string(micro_batch));
  return text;
}

std::string plan_text(PipelineOrder order, int stage, int stages, int micro_batches) {
  return text_of(plan_pipeline(order, stage, stages, micro_batches));
}

// Calls `check` with all small pipelines.
template <typename Check>
void for_all(const Check& check) {
  for (const PipelineOrder order : {kGPipe, kOneForwardOneBackward, kForwardOnly})
    for (int stages = 1; stages <= kStagesMost; ++stages)
      for (int micro_batches = 1; micro_batches <= kMicroBatchesMost; ++micro_batches)
        check(order, stages, micro_batches);
}

std::vector<int> numbers_of(const Actions& actions, Kind kind) {
  std::vector<int> numbers;
  for (const auto& action : actions)
    if (action.kind == kind) numbers.push_back(action.micro_batch);
  return numbers;
}

int most_live(const Actions& actions) {
  int live = 0, most = 0;
  for (const auto& action : actions) {
    if (action.kind == Kind::kForward) most = std::max(most, ++live);
    if (action.kind == Kind::kBackward) --live;
  }
  return most;
}

// A pipeline whose sends wait for their receives, and take no time. A forward takes 1, a backward
// 2.
class Simulation {
 public:
  explicit Simulation(std::vector<Actions> plans)
      : plans_(std::move(plans)), places_(plans_.size(), 0), times_(plans_.size(), 0) {}

  // Returns the time of the last stage to end; nothing if all wait for each other.
  std::optional<int> run() {
    for (bool moved = true; std::exchange(moved, false);)
      for (std::size_t stage = 0; stage < plans_.size(); ++stage) moved |= move(stage);
    for (std::size_t stage = 0; stage < plans_.size(); ++stage)
      if (next(stage) != nullptr) return std::nullopt;
    return *std::ranges::max_element(times_);
  }

 private:
  const PipelineAction* next(std::size_t stage) const {
    const Actions& plan = plans_[stage];
    return places_[stage] < plan.size() ? &plan[places_[stage]] : nullptr;
  }

  // Does one action of a stage, or a send and its receive.
  bool move(std::size_t stage) {
    const PipelineAction* const action = next(stage);
    if (action == nullptr) return false;
    switch (action->kind) {
      case Kind::kForward:
      case Kind::kBackward:
        times_[stage] += action->kind == Kind::kForward ? 1 : 2;
        ++places_[stage];
        return true;
      case Kind::kSendOutput:
        return meet(stage, stage + 1, {Kind::kReceiveInput, action->micro_batch});
      case Kind::kSendGradient:
        return meet(stage, stage - 1, {Kind::kReceiveGradient, action->micro_batch});
      case Kind::kReceiveInput:
      case Kind::kReceiveGradient:
        return false;  // the sender moves both
    }
    return false;
  }

  bool meet(std::size_t sender, std::size_t receiver, const PipelineAction& receives) {
    const PipelineAction* const other = next(receiver);
    if (other == nullptr || !(*other == receives)) return false;
    times_[sender] = times_[receiver] = std::max(times_[sender], times_[receiver]);
    ++places_[sender];
    ++places_[receiver];
    return true;
  }

  std::vector<Actions> plans_;
  std::vector<std::size_t> places_;
  std::vector<int> times_;
};

std::vector<Actions> plans_of(PipelineOrder order, int stages, int micro_batches) {
  std::vector<Actions> plans;
  for (int stage = 0; stage < stages; ++stage)
    plans.push_back(plan_pipeline(order, stage, stages, micro_batches));
  return plans;
}

TEST(PipelinePlan, GPipeMakesAllForwardsFirst) {
  EXPECT_EQ(plan_text(kGPipe, 0, 2, 2), "F0 >0 F1 >1 }0 B0 }1 B1");
  EXPECT_EQ(plan_text(kGPipe, 1, 2, 2), "<0 F0 <1 F1 B0 {0 B1 {1");
}

TEST(PipelinePlan, OneForwardOneBackwardTakesTurnsAfterTheWarmUp) {
  EXPECT_EQ(plan_text(kOneForwardOneBackward, 0, 3, 4),
            "F0 >0 F1 >1 F2 >2 }0 B0 F3 >3 }1 B1 }2 B2 }3 B3");
  EXPECT_EQ(plan_text(kOneForwardOneBackward, 1, 3, 4),
            "<0 F0 >0 <1 F1 >1 }0 B0 <2 {0 F2 >2 }1 B1 <3 {1 F3 >3 }2 B2 {2 }3 B3 {3");
  EXPECT_EQ(plan_text(kOneForwardOneBackward, 2, 3, 4),
            "<0 F0 B0 <1 {0 F1 B1 <2 {1 F2 B2 <3 {2 F3 B3 {3");
}

TEST(PipelinePlan, AStageAloneSendsNothing) {
  EXPECT_EQ(plan_text(kGPipe, 0, 1, 2), "F0 F1 B0 B1");
  EXPECT_EQ(plan_text(kOneForwardOneBackward, 0, 1, 2), "F0 B0 F1 B1");
  EXPECT_EQ(plan_text(kForwardOnly, 0, 1, 2), "F0 F1");
}

TEST(PipelinePlan, ForwardsAloneGiveNothingBack) {
  EXPECT_EQ(plan_text(kForwardOnly, 1, 3, 2), "<0 F0 >0 <1 F1 >1");
}

TEST(PipelinePlan, EveryMicroBatchComesOnceAndInOrder) {
  for_all([](PipelineOrder order, int stages, int micro_batches) {
    std::vector<int> all(static_cast<std::size_t>(micro_batches));
    for (int i = 0; i < micro_batches; ++i) all[static_cast<std::size_t>(i)] = i;
    const auto if_any = [&](bool any) { return any ? all : std::vector<int>(); };
    for (int stage = 0; stage < stages; ++stage) {
      const Actions plan = plan_pipeline(order, stage, stages, micro_batches);
      const bool back = order != kForwardOnly, first = stage == 0, last = stage == stages - 1;
      const std::map<Kind, std::vector<int>> wanted{
          {Kind::kReceiveInput, if_any(!first)}, {Kind::kForward, all},
          {Kind::kSendOutput, if_any(!last)},    {Kind::kReceiveGradient, if_any(back && !last)},
          {Kind::kBackward, if_any(back)},       {Kind::kSendGradient, if_any(back && !first)}};
      for (const auto& [kind, numbers] : wanted)
        EXPECT_EQ(numbers_of(plan, kind), numbers) << text_of(plan);
    }
  });
}

TEST(PipelinePlan, NothingIsUsedBeforeItIsThere) {
  static constexpr std::array kOrder{Kind::kReceiveInput,    Kind::kForward,  Kind::kSendOutput,
                                     Kind::kReceiveGradient, Kind::kBackward, Kind::kSendGradient};
  for_all([](PipelineOrder order, int stages, int micro_batches) {
    for (int stage = 0; stage < stages; ++stage) {
      const Actions plan = plan_pipeline(order, stage, stages, micro_batches);
      for (int i = 0; i < micro_batches; ++i) {
        std::vector<Kind> of_one;
        for (const auto& action : plan)
          if (action.micro_batch == i) of_one.push_back(action.kind);
        EXPECT_TRUE(std::ranges::is_sorted(of_one, {}, [](Kind kind) {
          return std::ranges::find(kOrder, kind) - kOrder.begin();
        })) << text_of(plan);
      }
    }
  });
}

TEST(PipelinePlan, ActivationsAliveAreAsManyAsTheScheduleSays) {
  for_all([](PipelineOrder order, int stages, int micro_batches) {
    if (order == kForwardOnly) return;
    for (int stage = 0; stage < stages; ++stage) {
      const int wanted = order == kGPipe ? micro_batches : std::min(micro_batches, stages - stage);
      EXPECT_EQ(most_live(plan_pipeline(order, stage, stages, micro_batches)), wanted)
          << stage << " of " << stages << ", " << micro_batches;
    }
  });
}

// The time without any bubble is 3 for each micro-batch. The formula's is stages-1 more of them.
TEST(PipelinePlan, BlockingSendsEndAndTakeTheTimeOfTheFormula) {
  for_all([](PipelineOrder order, int stages, int micro_batches) {
    const int of_one = order == kForwardOnly ? 1 : 3;
    const auto time = Simulation(plans_of(order, stages, micro_batches)).run();
    ASSERT_TRUE(time) << "deadlock of " << stages << " stages, " << micro_batches;
    EXPECT_EQ(*time, of_one * (micro_batches + stages - 1)) << stages << ", " << micro_batches;
  });
}

// The simulation can tell: a stage that gives its gradient back first would wait forever.
TEST(PipelinePlan, AGradientBeforeTheNextActivationWouldBlock) {
  auto plans = plans_of(kOneForwardOneBackward, 2, 2);
  ASSERT_EQ(text_of(plans[1]), "<0 F0 B0 <1 {0 F1 B1 {1");
  std::swap(plans[1][3], plans[1][4]);
  EXPECT_EQ(Simulation(plans).run(), std::nullopt);
}

// Two ranks with unlike numbers of micro-batches would wait forever, too.
TEST(PipelinePlan, UnlikeMicroBatchesWouldBlock) {
  EXPECT_EQ(Simulation({plan_pipeline(kGPipe, 0, 2, 3), plan_pipeline(kGPipe, 1, 2, 2)}).run(),
            std::nullopt);
}

}  // namespace
}  // namespace ddprun::worker
