// ZeroOptimizer in forked ranks: what each rank keeps, what travels, and its state as that of one
// optimizer. That it has Python's bits: python_parity/join_zero_parity_test.py.
#include <ddprun/amp.h>
#include <ddprun/checkpoint.h>
#include <ddprun/tensor_collective.h>
#include <ddprun/zero_optimizer.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <torch/nn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/worker/collective/tcp/tcp_ranks.h"
#include "tests/worker/torch_ranks.h"
#include "tests/worker/training/data_parallel/counting_collective.h"
#include "tests/worker/training/zero/zero_nets.h"
#include "worker/training/tensors/summable.h"
#include "worker/training/tensors/wrapped_number.h"

namespace ddprun::worker {
namespace {

// Counts the bytes of the state's tensors.
std::size_t bytes_of(const torch::optim::Optimizer& optimizer) {
  std::size_t bytes = 0;
  for (const auto& [parameter, state] : optimizer.state()) {
    const auto& adam = static_cast<const torch::optim::AdamParamState&>(*state);
    bytes += adam.exp_avg().nbytes() + adam.exp_avg_sq().nbytes();
  }
  return bytes;
}

std::size_t bytes_of(const torch::nn::Module& net) {
  std::size_t bytes = 0;
  for (const at::Tensor& parameter : net.parameters()) bytes += parameter.nbytes();
  return bytes;
}

// The same training with an Adam of all parameters on each rank.
void expect_as_unsharded(Collective& ranks, bool scatters,
                         const DataParallelOptions& options = {}) {
  auto plain_net = layered_net();
  DataParallel plain(plain_net.ptr(), ranks, options);
  Adam whole(plain_net->parameters(), Adam::Options(0.01));
  train_steps(plain_net, plain, whole, 0, 6);
  auto net = layered_net();
  DataParallel parallel(net.ptr(), ranks, options);
  ZeroOptimizer<Adam> optimizer(net->parameters(), ranks, Adam::Options(0.01));
  if (scatters) optimizer.reduce_scatter(parallel);
  train_steps(net, parallel, optimizer, 0, 6);
  expect_same_weights(*net, *plain_net);
}

TEST(ZeroOptimizer, EndsAsOneOptimizerOfAllParameters) {
  for (const int ranks : {2, 3, 4}) {
    run_torch_ranks(ranks, [](Collective& collective) {
      PassingCollective sends(collective);  // it shows nobody the others' memory
      for (const bool scatters : {false, true}) {
        expect_as_unsharded(collective, scatters);
        expect_as_unsharded(sends, scatters);
        expect_as_unsharded(collective, scatters,
                            {.bucket_cap_bytes = 300, .gradient_as_bucket_view = false});
        expect_as_unsharded(sends, scatters,
                            {.bucket_cap_bytes = 300, .find_unused_parameters = true});
      }
    });
  }
}

TEST(ZeroOptimizer, EndsAsOneOptimizerOverTcp) {
  run_torch_ranks(tcp_ranks(3), [](Collective& collective) {
    for (const bool scatters : {false, true}) expect_as_unsharded(collective, scatters);
  });
}

void expect_no_more_than_the_formula(Collective& ranks, bool one_copy) {
  auto net = layered_net(200);
  DataParallel parallel(net.ptr(), ranks);
  ZeroOptimizer<Adam> optimizer(net->parameters(), ranks, Adam::Options(0.01));
  optimizer.reduce_scatter(parallel);
  train_steps(net, parallel, optimizer, 0, 1);
  const auto all = static_cast<double>(bytes_of(*net));
  const double world = ranks.world_size();
  const auto state = static_cast<double>(bytes_of(optimizer.local()));
  const ZeroTraffic traffic = optimizer.traffic();
  std::vector<double> totals{state, static_cast<double>(traffic.gradients),
                             static_cast<double>(traffic.parameters)};
  ranks.sum(totals);
  EXPECT_EQ(totals[0], 2 * all);
  // On average over the ranks: exactly (N-1)/N·S each way, but that places of parameters are
  // aligned.
  EXPECT_EQ(totals[1], (world - 1) * all);
  EXPECT_GE(totals[2], one_copy ? 0 : (world - 1) * all);
  EXPECT_LE(totals[2], one_copy ? 0 : (world - 1) * (all + 64 * 6));
  // One weight is nearly all of this model, so here nobody is near 1/N: see the next test.
}

TEST(ZeroOptimizer, KeepsAnNthOfTheStateAndMovesNoMoreThanTheFormula) {
  for (const int ranks : {2, 3, 4}) {
    run_torch_ranks(ranks, [](Collective& collective) {
      PassingCollective sends(collective);
      expect_no_more_than_the_formula(collective, true);
      expect_no_more_than_the_formula(sends, false);
    });
  }
}

TEST(ZeroOptimizer, KeepsAnNthOfTheStateOnEachRank) {
  for (const int ranks : {2, 3, 4}) {
    run_torch_ranks(ranks, [](Collective& collective) {
      torch::nn::Sequential net;
      for (int layer = 0; layer < 24; ++layer) net->push_back(torch::nn::Linear(20, 20));
      DataParallel parallel(net.ptr(), collective);
      ZeroOptimizer<Adam> optimizer(net->parameters(), collective, Adam::Options(0.01));
      parallel.forward(net, torch::ones({1, 20})).sum().backward();
      parallel.step(optimizer);
      const double share = static_cast<double>(bytes_of(optimizer.local())) /
                           (2.0 * static_cast<double>(bytes_of(*net)));
      EXPECT_LE(share, 1.0 / collective.world_size() + 0.05);
      EXPECT_GT(share, 0);
    });
  }
}

// Bytes that this process's heap gains by one step of the optimizer: what the state needs in truth.
template <typename Optimizer>
double heap_gained_by_a_step(DataParallel& parallel, torch::nn::Sequential& net,
                             Optimizer& optimizer) {
  const auto used = [] {
    const auto heap = ::mallinfo2();
    return static_cast<double>(heap.uordblks + heap.hblkhd);
  };
  parallel.forward(net, torch::ones({1, 200})).sum().backward();
  const double before = used();
  parallel.step(optimizer);
  return used() - before;
}

TEST(ZeroOptimizer, AnNthOfTheHeapIsTaken) {
  for (const int ranks : {2, 3, 4}) {
    run_torch_ranks(ranks, [](Collective& collective) {
      torch::nn::Sequential net;
      for (int layer = 0; layer < 24; ++layer) net->push_back(torch::nn::Linear(200, 200));
      DataParallel parallel(net.ptr(), collective);
      Adam whole(net->parameters(), Adam::Options(0.01));
      ZeroOptimizer<Adam> sharded(net->parameters(), collective, Adam::Options(0.01));
      const double all = heap_gained_by_a_step(parallel, net, whole);
      const double share = heap_gained_by_a_step(parallel, net, sharded) / all;
      const auto state = 2.0 * static_cast<double>(bytes_of(*net));
      EXPECT_GE(all, state);
      EXPECT_LE(all, 1.05 * state);
      EXPECT_LE(share, 1.0 / collective.world_size() + 0.05);
      EXPECT_GT(share, 0.9 / collective.world_size());
    });
  }
}

// The consolidated state is that of an unsharded Adam, to the bit. It then trains on with another
// number of ranks.
TEST(ZeroOptimizer, ConsolidatesAndLoadsWithAnotherNumberOfRanks) {
  run_torch_ranks(3, [](Collective& collective) {
    auto net = layered_net();
    DataParallel parallel(net.ptr(), collective);
    ZeroOptimizer<Adam> optimizer(net->parameters(), collective, Adam::Options(0.01));
    auto plain_net = layered_net();
    DataParallel plain(plain_net.ptr(), collective);
    Adam plain_optimizer(plain_net->parameters(), Adam::Options(0.01));
    train_steps(net, parallel, optimizer, 0, 4);
    train_steps(plain_net, plain, plain_optimizer, 0, 4);
    Adam whole = optimizer.consolidate(1);
    EXPECT_EQ(whole.state().size(), collective.rank() == 1 ? 6U : 0U);
    if (collective.rank() == 1) {
      const auto parameters = net->parameters();
      const auto plain_parameters = plain_net->parameters();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const auto& ours = static_cast<const torch::optim::AdamParamState&>(
            *whole.state()[parameters[i].unsafeGetTensorImpl()]);
        const auto& theirs = static_cast<const torch::optim::AdamParamState&>(
            *plain_optimizer.state()[plain_parameters[i].unsafeGetTensorImpl()]);
        EXPECT_EQ(ours, theirs) << i;
      }
    }
    // Two of the three go on, and the third one alone.
    Adam saved = optimizer.consolidate();
    const std::string path = ::testing::TempDir() + "zero_" + std::to_string(::getppid()) + ".pt";
    save_checkpoint(path, {*net, saved, collective}, {.epoch = 1});
    collective.barrier();
    const auto fewer_ranks = collective.split(collective.rank() < 2 ? 0 : 1, 0);
    DataParallel fewer(net.ptr(), *fewer_ranks);
    ZeroOptimizer<Adam> resumed(net->parameters(), *fewer_ranks, Adam::Options(0.5));
    Adam loaded = resumed.unsharded();
    EXPECT_TRUE(load_checkpoint(path, {*net, loaded, *fewer_ranks}).optimizer);
    collective.barrier();
    std::remove(path.c_str());
    resumed.load(std::move(loaded));
    EXPECT_EQ(resumed.param_groups()[0].options().get_lr(), 0.01);
    DataParallel plain_fewer(plain_net.ptr(), *fewer_ranks);
    train_steps(net, fewer, resumed, 4, 7);
    train_steps(plain_net, plain_fewer, plain_optimizer, 4, 7);
    expect_same_weights(*net, *plain_net);
  });
}

TEST(ZeroOptimizer, HasGroupsWithOptionsOfTheirOwn) {
  run_torch_ranks(2, [](Collective& collective) {
    using Group = torch::optim::OptimizerParamGroup;
    const auto groups_of = [](torch::nn::Sequential& net) {
      const auto all = net->parameters();
      return std::vector<Group>{Group({all[0], all[1]}, std::make_unique<SGD::Options>(0.5)),
                                Group({all[2], all[3], all[4], all[5]})};
    };
    auto net = layered_net();
    auto plain_net = layered_net();
    DataParallel parallel(net.ptr(), collective);
    DataParallel plain(plain_net.ptr(), collective);
    ZeroOptimizer<SGD> optimizer(groups_of(net), collective, SGD::Options(0.1).momentum(0.9));
    SGD whole(groups_of(plain_net), SGD::Options(0.1).momentum(0.9));
    train_steps(net, parallel, optimizer, 0, 3);
    train_steps(plain_net, plain, whole, 0, 3);
    expect_same_weights(*net, *plain_net);
  });
}

// The gradient of one parameter is infinite, and its owner alone has the sum: the ranks agree all
// the same.
TEST(ZeroOptimizer, SkipsAStepOnAllRanksWithAScaler) {
  run_torch_ranks(3, [](Collective& collective) {
    auto net = layered_net();
    DataParallel parallel(net.ptr(), collective);
    ZeroOptimizer<Adam> optimizer(net->parameters(), collective, Adam::Options(0.01));
    optimizer.reduce_scatter(parallel);
    GradScaler scaler({.initial_scale = 8}, &collective);
    const double infinity = std::numeric_limits<double>::infinity();
    for (const bool breaks : {false, true, false}) {
      optimizer.zero_grad();
      auto loss = parallel.forward(net, torch::randn({5, 4})).square().mean();
      if (breaks) loss = loss + net->parameters().back().sum() * infinity;
      scaler.scale(loss).backward();
      EXPECT_EQ(scaler.step(parallel, optimizer), !breaks);
    }
    EXPECT_EQ(scaler.scale(), 4);
  });
}

TEST(ZeroOptimizer, TakesEachParameterOnceAndOneWithoutElements) {
  run_torch_ranks(2, [](Collective& collective) {
    auto net = layered_net();
    auto twice = net->parameters();
    twice.push_back(twice.front());
    EXPECT_NE(message_of([&] {
                ZeroOptimizer<SGD>(twice, collective, SGD::Options(0.1));
              }).find("a parameter is in the list twice"),
              std::string::npos);
    net->push_back(torch::nn::Linear(2, 0));
    ZeroOptimizer<SGD> optimizer(net->parameters(), collective, SGD::Options(0.1));
    EXPECT_EQ(message_of([&] { optimizer.step(); }), "");
  });
}

TEST(ZeroOptimizer, RefusesParametersThatLieElsewhereThanTheRanks) {
  const auto alone = make_alone_collective();
  SaysGpus gpus(*alone);
  auto net = layered_net();
  EXPECT_EQ(message_of([&] { ZeroOptimizer<SGD>(net->parameters(), gpus, SGD::Options(0.1)); }),
            "ZeroOptimizer: a parameter is on cpu, and the ranks of 'alone' are on cuda");
}

TEST(ZeroOptimizer, TellsAllRanksWhereTheirParametersDiffer) {
  run_torch_ranks(2, [](Collective& collective) {
    auto net = layered_net(collective.rank() == 0 ? 8 : 9);
    EXPECT_EQ(
        message_of([&] { ZeroOptimizer<SGD>(net->parameters(), collective, SGD::Options(0.1)); }),
        "ZeroOptimizer: groups, sizes and types of the parameters: rank 1 differs from rank 0");
    auto same = layered_net();
    ZeroOptimizer<SGD> optimizer(same->parameters(), collective, SGD::Options(0.1));
    same->parameters()[0].set_data(torch::zeros({8, 4}));
    EXPECT_NE(message_of([&] { optimizer.step(); }).find("has other memory"), std::string::npos);
    auto part = layered_net();
    DataParallel parallel(part.ptr(), collective);
    ZeroOptimizer<SGD> half({part->parameters()[0]}, collective, SGD::Options(0.1));
    half.reduce_scatter(parallel);
    EXPECT_NE(message_of([&] {
                parallel.forward(part, torch::ones({1, 4})).sum().backward();
              }).find("needs all parameters"),
              std::string::npos);
  });
}

}  // namespace
}  // namespace ddprun::worker
