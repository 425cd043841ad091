// ZeroOptimizer::reduce_scatter() in ranks that share memory: the parameters are there once. That
// the weights have the bits of a training without it: zero_optimizer_test.cc.
#include <ddprun/zero_optimizer.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <string>
#include <utility>

#include "tests/worker/torch_ranks.h"
#include "tests/worker/training/data_parallel/counting_collective.h"
#include "tests/worker/training/zero/zero_nets.h"

namespace ddprun::worker {
namespace {

// Rank 1 sets its net's first parameter to 3, all others to 0. Returns what this rank finds in its
// own then.
double seen_after_rank_1_writes(torch::nn::Sequential& net, Collective& collective) {
  const torch::NoGradGuard no_grad;
  at::Tensor parameter = net->parameters()[0];
  parameter.zero_();
  collective.barrier();
  if (collective.rank() == 1) parameter.fill_(3);
  collective.barrier();
  const double seen = parameter.max().item<double>();
  collective.barrier();
  return seen;
}

TEST(ZeroOptimizer, HasOneCopyOfTheParametersWhereRanksShareMemory) {
  run_torch_ranks(3, [](Collective& collective) {
    PassingCollective sends(collective);  // it shows nobody the others' memory
    const double rank_1s = collective.rank() == 1 ? 3 : 0;
    for (Collective* each : {&collective, static_cast<Collective*>(&sends)}) {
      auto net = layered_net();
      net->push_back(torch::nn::Linear(2, 0));
      DataParallel parallel(net.ptr(), *each, {.init_sync = false});
      {
        const torch::NoGradGuard no_grad;
        for (const at::Tensor& parameter : net->parameters()) parameter.fill_(collective.rank());
        ZeroOptimizer<Adam> optimizer(net->parameters(), *each, Adam::Options(0.01));
        optimizer.reduce_scatter(parallel);
        const bool one_copy = each == &collective;
        // Rank 0's values, where there is one copy.
        EXPECT_EQ(net->parameters()[2].max().item<double>(), one_copy ? 0 : collective.rank());
        EXPECT_EQ(seen_after_rank_1_writes(net, collective), one_copy ? 3 : rank_1s);
        optimizer.step();
        EXPECT_EQ(optimizer.traffic().parameters == 0, one_copy);
      }
      // The optimizer is gone: each rank has its own.
      if (each == &collective) {
        EXPECT_EQ(net->parameters()[2].max().item<double>(), 0);
      }
      EXPECT_EQ(seen_after_rank_1_writes(net, collective), rank_1s);
    }
  });
}

// Its step takes some time on the rank that sets is_slow.
class SlowSgd final : public torch::optim::SGD {
 public:
  using torch::optim::SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    for (int turn = 0; turn < 2000 && is_slow; ++turn) torch::ones({100}).sum();
    return torch::optim::SGD::step(std::move(closure));
  }
  static thread_local bool is_slow;
};
thread_local bool SlowSgd::is_slow = false;

// A rank may use its net until it comes to the step, however early the others are there. Behind the
// step all parameters are those of after it.
TEST(ZeroOptimizer, StepsTheOneCopyWhileNobodyReadsIt) {
  run_torch_ranks(2, [](Collective& collective) {
    SlowSgd::is_slow = collective.rank() == 1;
    auto net = layered_net();
    DataParallel parallel(net.ptr(), collective);
    ZeroOptimizer<SlowSgd> optimizer(net->parameters(), collective, torch::optim::SGDOptions(0.5));
    optimizer.reduce_scatter(parallel);
    const auto input = torch::ones({5, 4});
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      parallel.forward(net, input).square().mean().backward();
      const torch::NoGradGuard no_grad;
      const at::Tensor before = net->forward(input);
      for (int look = 0; look < 300 && collective.rank() == 1; ++look)
        ASSERT_TRUE(torch::equal(net->forward(input), before)) << step;
      parallel.step(optimizer);
      const at::Tensor after = net->forward(input);
      EXPECT_FALSE(torch::equal(after, before));
      collective.barrier();
      EXPECT_TRUE(torch::equal(net->forward(input), after)) << step;
    }
  });
}

TEST(ZeroOptimizer, ScattersForTwoDataParallels) {
  run_torch_ranks(2, [](Collective& collective) {
    auto plain_net = layered_net();
    auto net = layered_net();
    DataParallel plain(plain_net.ptr(), collective);
    SGD whole(plain_net->parameters(), SGD::Options(0.1));
    ZeroOptimizer<SGD> optimizer(net->parameters(), collective, SGD::Options(0.1));
    for (const int begin : {0, 3}) {
      DataParallel parallel(net.ptr(), collective);
      optimizer.reduce_scatter(parallel);
      train_steps(net, parallel, optimizer, begin, begin + 3);
      train_steps(plain_net, plain, whole, begin, begin + 3);
      optimizer.zero_grad();
    }
    expect_same_weights(*net, *plain_net);
  });
}

TEST(ZeroOptimizer, RefusesToScatterParametersThatWereConverted) {
  run_torch_ranks(2, [](Collective& collective) {
    auto net = layered_net();
    ZeroOptimizer<SGD> optimizer(net->parameters(), collective, SGD::Options(0.1));
    net->to(at::kDouble);
    DataParallel parallel(net.ptr(), collective);
    EXPECT_NE(message_of([&] { optimizer.reduce_scatter(parallel); }).find("has other memory"),
              std::string::npos);
  });
}

}  // namespace
}  // namespace ddprun::worker
