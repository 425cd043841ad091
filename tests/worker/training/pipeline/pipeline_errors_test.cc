// Errors of a pipeline, and how its ranks end. Each error is one line, and nobody waits.
#include <ddprun/join.h>
#include <ddprun/pipeline.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <csignal>
#include <functional>
#include <string>
#include <vector>

#include "tests/worker/collective/tcp/tcp_ranks.h"
#include "tests/worker/torch_ranks.h"

namespace ddprun::worker {
namespace {

using Call = std::function<void(Pipeline&)>;

at::Tensor mean_of(const at::Tensor& outputs, const at::Tensor& targets) {
  return (outputs - targets).pow(2).mean();
}

PipelineStage linear(std::int64_t from, std::int64_t to) {
  return pipeline_stage(torch::nn::Linear(from, to));
}

// The message of a rank; the same on all where they refuse together.
std::string refusal(const std::function<void()>& body) {
  const std::string message = message_of(body);
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message;
}

TEST(PipelineErrors, AllRanksAreToldOfUnequalOptions) {
  run_torch_ranks(3, [](Collective& ranks) {
    const bool other = ranks.rank() == 1;
    EXPECT_EQ(
        refusal([&] { Pipeline(linear(2, 2), ranks, mean_of, {.micro_batches = other ? 8 : 4}); }),
        "Pipeline: micro_batches 8 given on rank 1, expected 4 as on rank 0");
    const auto schedule =
        other ? PipelineSchedule::kGPipe : PipelineSchedule::kOneForwardOneBackward;
    EXPECT_EQ(refusal([&] { Pipeline(linear(2, 2), ranks, mean_of, {.schedule = schedule}); }),
              "Pipeline: schedule gpipe given on rank 1, expected 1f1b as on rank 0");
    EXPECT_EQ(refusal([&] { Pipeline(linear(2, 2), ranks, mean_of, {.micro_batches = 0}); }),
              "Pipeline: micro_batches 0 given on rank 0, expected 1 or more");
  });
}

// Runs ranks that end by an error of one of them, and returns what rank `asked` says. The others
// are told that it has gone.
void expect_end(const RanksOptions& options, const std::function<PipelineStage(int)>& stage_of,
                int asked, const std::string& wanted, const Call& call) {
  run_torch_ranks(options, [&](Collective& ranks) {
    const auto message = refusal([&] {
      Pipeline pipeline(stage_of(ranks.rank()), ranks, mean_of, {.micro_batches = 2});
      call(pipeline);
    });
    // It ends then, and its peers come to know.
    EXPECT_EQ(ranks.rank() == asked, message == wanted) << message;
    EXPECT_NE(message, "");
  });
}

const Call kTrain = [](Pipeline& pipeline) {
  pipeline.forward_backward(torch::ones({4, 2}), torch::ones({4, 2}));
};

TEST(PipelineErrors, ABatchThatMicroBatchesDoNotDivideIsRefusedByTheRankThatNeedsIt) {
  const auto two = [](int) { return linear(2, 2); };
  expect_end({.ranks = 2}, two, 0,
             "Pipeline: inputs of 5 rows given, expected a multiple of the 2 micro-batches",
             [](Pipeline& pipeline) {
               pipeline.forward_backward(torch::ones({5, 2}), torch::ones({4, 2}));
             });
  expect_end({.ranks = 2}, two, 1,
             "Pipeline: targets of 5 rows given, expected a multiple of the 2 micro-batches",
             [](Pipeline& pipeline) {
               pipeline.forward_backward(torch::ones({4, 2}), torch::ones({5, 2}));
             });
  expect_end({.ranks = 2}, two, 0,
             "Pipeline: inputs of 0 rows given, expected a multiple of the 2 micro-batches",
             [](Pipeline& pipeline) {
               pipeline.forward(torch::ones({0, 2}));
             });
  expect_end({.ranks = 2}, two, 0,
             "Pipeline: inputs without rows given on rank 0, expected sizes (rows, ...)",
             [](Pipeline& pipeline) { pipeline.forward(torch::tensor(1.0)); });
  expect_end({.ranks = 2}, two, 0,
             "Pipeline: inputs that are undefined given on rank 0, expected sizes (rows, ...)",
             [](Pipeline& pipeline) { pipeline.forward({}); });
}

TEST(PipelineErrors, StagesWhoseShapesDoNotFitAreNamed) {
  for (const RanksOptions& options : {RanksOptions{.ranks = 3}, tcp_ranks(3)})
    expect_end(
        options, [](int rank) { return rank == 1 ? linear(7, 2) : linear(2, 2); }, 1,
        "Pipeline: stage 1 cannot take the activations of stage 0, (2, 2) of float32: mat1 and "
        "mat2 shapes cannot be multiplied (2x2 and 7x2)",
        kTrain);
}

TEST(PipelineErrors, ActivationsThatChangeTheirSizesAreRefused) {
  expect_end(
      {.ranks = 2}, [](int) { return linear(2, 2); }, 0,
      "Pipeline: stage 0 returned (3, 2) of float32 for micro-batch 0, expected (2, 2) of "
      "float32 as for the first one",
      [](Pipeline& pipeline) {
        kTrain(pipeline);
        pipeline.forward_backward(torch::ones({6, 2}), torch::ones({6, 2}));
      });
}

TEST(PipelineErrors, ActivationsOfATypeThatCannotTravelAreRefused) {
  expect_end(
      {.ranks = 2},
      [](int) {
        return PipelineStage{[](const at::Tensor& x) { return x.to(at::kComplexFloat); }, {}};
      },
      0,
      "Pipeline: activations of type ComplexFloat given, expected dense ones of float32, "
      "float64, float16, bfloat16 or integers of 8, 32 and 64 bits",
      kTrain);
}

TEST(PipelineErrors, ALossThatIsNoScalarIsRefused) {
  run_torch_ranks(2, [](Collective& ranks) {
    const auto rows = [](const at::Tensor& y, const at::Tensor&) { return y; };
    const auto message = refusal([&] {
      Pipeline pipeline(linear(2, 2), ranks, rows, {.micro_batches = 2});
      kTrain(pipeline);
    });
    if (ranks.rank() == 1)
      EXPECT_EQ(message, "Pipeline: a loss of 2 dimensions given, expected a scalar");
    else
      EXPECT_NE(message, "");
  });
}

// A stage that has no memory left fits all the same.
TEST(PipelineErrors, MemoryThatIsUsedUpIsNoBadCut) {
  run_torch_ranks(2, [](Collective& ranks) {
    auto stage = linear(2, 2);
    if (ranks.rank() == 1)
      stage.forward = [](const at::Tensor& x) -> at::Tensor {
        TORCH_CHECK_WITH(OutOfMemoryError, false, "no memory is left");
        return x;
      };
    Pipeline pipeline(stage, ranks, mean_of, {.micro_batches = 2});
    if (ranks.rank() == 1)
      EXPECT_THROW(kTrain(pipeline), c10::OutOfMemoryError);
    else
      EXPECT_THROW(kTrain(pipeline), CollectiveError);
  });
}

TEST(PipelineErrors, ADataParallelThatNeedsABackwardBehindEachForwardIsRefusedByAllRanks) {
  run_torch_ranks(2, [](Collective& ranks) {
    const auto alone = ranks.split(ranks.rank(), 0);  // one rank along the data axis
    torch::nn::Linear net(2, 2);
    DataParallel parallel(net.ptr(), *alone, {.find_unused_parameters = ranks.rank() == 1});
    EXPECT_EQ(refusal([&] { Pipeline(pipeline_stage(net, parallel), ranks, mean_of); }),
              "Pipeline: a DataParallel with find_unused_parameters, static_graph or "
              "step_in_backward() given on rank 1, expected one without them");
  });
}

// It is asked again in backward(), for what the program has set since.
TEST(PipelineErrors, ADataParallelThatStepsInBackwardSinceIsRefused) {
  run_torch_ranks(1, [](Collective& ranks) {
    torch::nn::Linear net(2, 2);
    DataParallel parallel(net.ptr(), ranks);
    Pipeline pipeline(pipeline_stage(net, parallel), ranks, mean_of, {.micro_batches = 2});
    parallel.step_in_backward([](at::Tensor&) {});
    EXPECT_EQ(refusal([&] { kTrain(pipeline); }),
              "average_next_backward(): find_unused_parameters, static_graph and "
              "step_in_backward() need a forward() right before their backward()");
  });
}

TEST(PipelineErrors, ADataParallelUnderNoSyncOrInAJoinIsRefused) {
  run_torch_ranks(1, [](Collective& ranks) {
    const std::string called = "average_next_backward(): called while a ";
    torch::nn::Linear net(2, 2);
    DataParallel parallel(net.ptr(), ranks);
    Pipeline pipeline(pipeline_stage(net, parallel), ranks, mean_of, {.micro_batches = 2});
    {
      const auto no_sync = parallel.no_sync();
      EXPECT_EQ(refusal([&] { kTrain(pipeline); }),
                called + "NoSync lives, which says itself what is averaged");
    }
    kTrain(pipeline);
    const auto join = Join(parallel);
    EXPECT_EQ(refusal([&] { kTrain(pipeline); }),
              called + "Join lives, which says itself what is averaged");
  });
}

// Rank `lost` dies in a forward or in a backward of the second batch. The others do not wait, and
// all know it at the third batch.
void expect_all_to_end(RanksOptions options, int lost, bool in_backward) {
  options.timeout = std::chrono::seconds(600);  // nobody waits for that
  const auto statuses = run_ranks_to_end(options, [lost, in_backward](Collective& ranks) {
    at::set_num_threads(1);
    int calls = 0;
    const auto die_at_last = [&calls, &ranks, lost] {
      if (ranks.rank() == lost && ++calls == 4) ::raise(SIGKILL);
    };
    auto stage = linear(2, 2);
    stage.forward = [forward = stage.forward, &die_at_last, in_backward](const at::Tensor& x) {
      if (!in_backward) die_at_last();
      const at::Tensor y = forward(x);
      if (in_backward) y.register_hook([&die_at_last](const at::Tensor&) { die_at_last(); });
      return y;
    };
    Pipeline pipeline(stage, ranks, mean_of, {.micro_batches = 3});
    const auto x = torch::ones({3, 2});
    const auto message = refusal([&] {
      for (int step = 0; step < 3; ++step) pipeline.forward_backward(x, x);
    });
    EXPECT_NE(message, "");
  });
  for (std::size_t rank = 0; rank < statuses.size(); ++rank)
    EXPECT_EQ(statuses[rank], static_cast<int>(rank) == lost ? SIGKILL : 0) << rank;
}

TEST(PipelineErrors, ARankThatIsLostEndsAllOthers) {
  for (const int lost : {0, 2, 3})
    for (const bool in_backward : {false, true})
      for (const RanksOptions& options : {RanksOptions{.ranks = 4}, tcp_ranks(4)})
        expect_all_to_end(options, lost, in_backward);
}

}  // namespace
}  // namespace ddprun::worker
