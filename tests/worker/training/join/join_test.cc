// Ranks with 10, 13 and 7 batches. That they end with the bits of Python:
// python_parity/join_zero_parity_test.py.
#include <ddprun/amp.h>
#include <ddprun/comm_hook.h>
#include <ddprun/data_parallel.h>
#include <ddprun/join.h>
#include <ddprun/optimizers.h>
#include <ddprun/zero_optimizer.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <string>

#include "tests/worker/collective/tcp/tcp_ranks.h"
#include "tests/worker/torch_ranks.h"
#include "tests/worker/training/data_parallel/counting_collective.h"

namespace ddprun::worker {
namespace {

constexpr std::array kBatches{10, 13, 7};

int batches_of(const Collective& ranks) { return kBatches[static_cast<std::size_t>(ranks.rank())]; }

torch::nn::Sequential uneven_net() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(4, 6), torch::nn::BatchNorm1d(6),
                               torch::nn::Tanh(), torch::nn::Linear(6, 2));
}

at::Tensor batch(int step, int rank) {
  torch::manual_seed(100 * step + rank);
  return torch::randn({5, 4});
}

// Three ranks, of one host and of three.
void run_uneven_ranks(const RankBody& body) {
  run_torch_ranks(3, body);
  run_torch_ranks(tcp_ranks(3), body);
}

void expect_equal_on_all_ranks(const torch::nn::Module& net, Collective& ranks) {
  for (const auto& parameter : net.named_parameters())
    worker::expect_equal_on_all_ranks(parameter.value(), ranks, parameter.key());
  for (const auto& buffer : net.named_buffers())
    worker::expect_equal_on_all_ranks(buffer.value(), ranks, buffer.key());
}

// Trains with Join and checks the end. `prepare` gets the DataParallel before the first pass.
template <typename Prepare>
void train_joined(Collective& ranks, const JoinOptions& join_options,
                  const DataParallelOptions& options, const Prepare& prepare) {
  auto net = uneven_net();
  DataParallel parallel(net.ptr(), ranks, options);
  prepare(parallel, *net);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  {
    const auto join = Join(join_options, parallel);
    for (int step = 0; step < batches_of(ranks); ++step) {
      optimizer.zero_grad();
      parallel.forward(net, batch(step, ranks.rank())).square().mean().backward();
      parallel.step(optimizer);
    }
  }
  EXPECT_EQ(parallel.log_record().numbers.at("join_uneven_inputs"), 1);
  expect_equal_on_all_ranks(*net, ranks);
  // A rank without batches got the last average, too.
  for (const at::Tensor& parameter : net->parameters()) {
    ASSERT_TRUE(parameter.grad().defined());
    worker::expect_equal_on_all_ranks(parameter.grad(), ranks);
  }
  // The next epoch is one like any other.
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    parallel.forward(net, batch(step, ranks.rank())).square().mean().backward();
  }
  for (const at::Tensor& parameter : net->parameters())
    worker::expect_equal_on_all_ranks(parameter.grad(), ranks);
}

constexpr auto kNothing = [](DataParallel& /*parallel*/, torch::nn::SequentialImpl& /*net*/) {};

TEST(JoinedRanks, EndWithEqualWeightsInEachMode) {
  run_uneven_ranks([](Collective& ranks) {
    for (const bool initial : {true, false}) {
      const JoinOptions join{.divide_by_initial_world_size = initial};
      train_joined(ranks, join, {}, kNothing);
      train_joined(ranks, join, {.gradient_as_bucket_view = false}, kNothing);
      train_joined(ranks, join, {.find_unused_parameters = true}, kNothing);
      train_joined(ranks, join, {.static_graph = true}, kNothing);
      train_joined(ranks, join, {}, [](DataParallel& parallel, auto& /*net*/) {
        parallel.comm_hook(compressed_hook(at::kBFloat16));
      });
    }
  });
}

// A gradient of the joined ranks counts as zero. All weights are whole numbers.
TEST(JoinedRanks, DivideByWhatIsAsked) {
  run_torch_ranks(3, [](Collective& ranks) {
    for (const bool initial : {true, false}) {
      Chain net;
      DataParallel parallel(net.ptr(), ranks);
      const auto join = Join({.divide_by_initial_world_size = initial}, parallel);
      for (int step = 0; step < 1 + ranks.rank(); ++step) {
        net->zero_grad();
        parallel.forward(net, torch::full({4}, 6.0)).sum().backward();
        const float active = static_cast<float>(3 - step);
        EXPECT_EQ(first_of(net->first.grad()), initial ? 2 * active : 6.0F);
      }
    }
  });
}

// Parameters that the joined rank has used count no more.
TEST(JoinedRanks, LeaveAloneWhatNobodyUsesAnyMore) {
  run_torch_ranks(2, [](Collective& ranks) {
    Chain net;
    DataParallel parallel(net.ptr(), ranks, {.find_unused_parameters = true});
    const auto join = Join(parallel);
    for (int step = 0; step < 1 + ranks.rank(); ++step) {
      net->zero_grad();
      parallel.forward(net, torch::full({4}, 6.0), ranks.rank() == 0).sum().backward();
      EXPECT_EQ(net->rare.grad().defined(), step == 0);
      EXPECT_EQ(first_of(net->first.grad()), step == 0 ? 6.0F : 3.0F);
    }
  });
}

// The loop of a program with Join.
template <typename Optimizer, typename... Joined>
void train(torch::nn::Sequential& net, DataParallel& parallel, Optimizer& optimizer, int batches,
           Joined&... joined) {
  const auto join = Join(parallel, joined...);
  for (int step = 0; step < batches; ++step) {
    optimizer.zero_grad();
    parallel.forward(net, batch(step, parallel.join_ranks().rank())).square().mean().backward();
    parallel.step(optimizer);
  }
}

// As one Adam of all parameters on the rank that comes last. One rank has no batch at all.
TEST(JoinedRanks, StepTheirShardsWithTheAverageOfTheOthers) {
  run_uneven_ranks([](Collective& ranks) {
    for (const bool scatters : {false, true}) {
      for (const int of_rank_0 : {10, 0}) {
        const int batches = ranks.rank() == 0 ? of_rank_0 : batches_of(ranks);
        auto plain_net = uneven_net();
        DataParallel plain(plain_net.ptr(), ranks);
        Adam whole(plain_net->parameters(), Adam::Options(0.01));
        train(plain_net, plain, whole, batches);
        auto net = uneven_net();
        DataParallel parallel(net.ptr(), ranks);
        ZeroOptimizer<Adam> optimizer(net->parameters(), ranks, Adam::Options(0.01));
        if (scatters) optimizer.reduce_scatter(parallel);
        train(net, parallel, optimizer, batches, optimizer);
        expect_equal_on_all_ranks(*net, ranks);
        for (const auto& parameter : plain_net->named_parameters())
          EXPECT_TRUE(torch::equal(parameter.value(), net->named_parameters()[parameter.key()]));
      }
    }
  });
}

TEST(JoinedRanks, RefuseAScalerWithShards) {
  run_torch_ranks(2, [](Collective& ranks) {
    auto net = uneven_net();
    DataParallel parallel(net.ptr(), ranks);
    ZeroOptimizer<Adam> optimizer(net->parameters(), ranks, Adam::Options(0.01));
    GradScaler scaler;
    const auto step = [&] {
      scaler.scale(parallel.forward(net, batch(0, ranks.rank())).square().mean()).backward();
      scaler.step(parallel, optimizer);
    };
    const auto joined = [&] {
      const auto join = Join(parallel, optimizer);
      step();
    };
    EXPECT_THROW(joined(), std::invalid_argument);
    EXPECT_NO_THROW(step());
  });
}

TEST(JoinedRanks, StepInBackward) {
  run_torch_ranks(3, [](Collective& ranks) {
    auto net = uneven_net();
    DataParallel parallel(net.ptr(), ranks);
    parallel.step_in_backward(
        optimizer_in_backward<torch::optim::SGD>(*net, torch::optim::SGDOptions(0.1)));
    {
      const auto join = Join(parallel);
      for (int step = 0; step < batches_of(ranks); ++step)
        parallel.forward(net, batch(step, ranks.rank())).square().mean().backward();
    }
    expect_equal_on_all_ranks(*net, ranks);
  });
}

// Two batches a step under NoSync, and an evaluation after each: the others follow.
TEST(JoinedRanks, FollowAccumulationAndEvaluation) {
  run_torch_ranks(3, [](Collective& ranks) {
    auto net = uneven_net();
    DataParallel parallel(net.ptr(), ranks);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    {
      const auto join = Join(parallel);
      for (int step = 0; step < batches_of(ranks); ++step) {
        optimizer.zero_grad();
        {
          const auto no_sync = parallel.no_sync();
          parallel.forward(net, batch(step, ranks.rank())).square().mean().backward();
        }
        parallel.forward(net, batch(step, ranks.rank() + 50)).square().mean().backward();
        parallel.step(optimizer);
        const torch::NoGradGuard no_grad;
        parallel.forward(net, batch(step, 99));
      }
    }
    expect_equal_on_all_ranks(*net, ranks);
  });
}

// Its running mean becomes what its input is.
TEST(JoinedRanks, TakeBuffersFromARankThatIsActive) {
  run_torch_ranks(3, [](Collective& ranks) {
    torch::nn::Sequential net(torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(2).momentum(1)));
    DataParallel parallel(net.ptr(), ranks);
    const at::Tensor mean = net->named_buffers()["0.running_mean"];
    const auto join = Join(parallel);
    for (int step = 0; step < 3 - ranks.rank(); ++step) {
      if (step > 0) {
        // The highest of those that are active.
        const int source = 2 - step;
        const auto before = torch::full({2}, 10.0 * source + step - 1);
        parallel.before_forward();
        EXPECT_TRUE(torch::allclose(mean, before)) << step;
      } else {
        parallel.before_forward();
      }
      const auto x = torch::full({4, 2}, 10.0 * ranks.rank() + step);
      const auto out = net->forward(x);
      parallel.after_forward();
      out.sum().backward();
    }
  });
}

TEST(JoinedRanks, AllThrowWhereOneHasNoMoreBatches) {
  run_uneven_ranks([](Collective& ranks) {
    auto net = uneven_net();
    DataParallel parallel(net.ptr(), ranks);
    int trained = 0;
    const std::string why = message_of([&] {
      const auto join = Join({.throw_on_early_termination = true}, parallel);
      for (int step = 0; step < batches_of(ranks); ++step) {
        parallel.forward(net, batch(step, ranks.rank())).square().mean().backward();
        ++trained;
      }
    });
    EXPECT_EQ(trained, 7);
    EXPECT_EQ(why,
              ranks.rank() == 2
                  ? "Rank 2 exhausted all inputs."
                  : "Detected at least one rank that exhausted inputs. Throwing across all ranks. "
                    "No more batches: rank 2");
  });
  // Equal numbers: nobody throws.
  run_torch_ranks(2, [](Collective& ranks) {
    auto net = uneven_net();
    DataParallel parallel(net.ptr(), ranks);
    const auto join = Join({.throw_on_early_termination = true}, parallel);
    parallel.forward(net, batch(0, ranks.rank())).square().mean().backward();
  });
}

TEST(JoinedRanks, WithoutJoinAreToldThatOneHasEnded) {
  const auto begin = std::chrono::steady_clock::now();
  run_torch_ranks(3, [](Collective& ranks) {
    auto net = uneven_net();
    DataParallel parallel(net.ptr(), ranks);
    const std::string why = message_of([&] {
      for (int step = 0; step < batches_of(ranks); ++step)
        parallel.forward(net, batch(step, ranks.rank())).square().mean().backward();
    });
    EXPECT_EQ(why.empty(), ranks.rank() == 2) << why;
    parallel.log_record();
    // As a program that prints and ends: its process is gone, and no destructor waits.
    if (::testing::Test::HasFailure()) return;
    std::_Exit(0);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST(JoinedRanks, CallNothingWhereJoinIsNotEnabled) {
  run_torch_ranks(2, [](Collective& ranks) {
    CountingCollective counting(ranks);
    auto net = uneven_net();
    DataParallel parallel(net.ptr(), counting, {.broadcast_buffers = false});
    const auto calls_of = [&](bool enable) {
      const int before = counting.calls;
      {
        const auto join = Join({.enable = enable}, parallel);
        parallel.forward(net, batch(0, ranks.rank())).square().mean().backward();
      }
      return counting.calls - before;
    };
    calls_of(false);  // builds buckets anew afterwards
    calls_of(false);
    EXPECT_EQ(calls_of(false), 2) << "a sum, and the comparison of weights";
    EXPECT_GT(calls_of(true), 1);
  });
}

TEST(JoinedRanks, RefuseWhatCannotBeJoined) {
  run_torch_ranks(2, [](Collective& ranks) {
    auto net = uneven_net();
    DataParallel parallel(net.ptr(), ranks);
    ZeroOptimizer<SGD> optimizer(net->parameters(), ranks, SGD::Options(0.1));
    EXPECT_EQ(message_of([&] { const auto join = Join(optimizer, parallel); }),
              "Join: a ZeroOptimizer cannot come first: name its DataParallel before it");
    EXPECT_EQ(message_of([&] { const auto join = Join(parallel, parallel); }),
              "Join: the DataParallel is in a Join already");
    parallel.buffer_hook([](auto& /*buffers*/, Collective& /*collective*/) {});
    EXPECT_NE(message_of([&] { const auto join = Join(parallel); }).find("buffer_hook()"),
              std::string::npos);
  });
}

}  // namespace
}  // namespace ddprun::worker
