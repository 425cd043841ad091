// Training in 16 bits, in forked ranks over shared memory.
#include <ddprun/amp.h>
#include <ddprun/comm_hook.h>
#include <ddprun/data_parallel.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim.h>

#include <limits>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "tests/worker/counted_operations.h"
#include "tests/worker/torch_ranks.h"

namespace ddprun::worker {
namespace {

// The error of one rounding, relative.
constexpr double kBFloat16Rounding = 1.0 / 256;

torch::nn::Sequential small_net() {
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Linear(20, 30), torch::nn::Tanh(),
                               torch::nn::Linear(30, 4));
}

at::Tensor samples_of(int rank, int pass) {
  torch::manual_seed(100 * pass + rank);
  return torch::randn({6, 20});
}

at::Tensor flat(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& tensor : tensors) parts.push_back(tensor.detach().flatten());
  return torch::cat(parts);
}

TEST(Autocast, HoldsWhileItLives) {
  const auto a = torch::randn({4, 4});
  {
    const Autocast outer(at::kCPU);
    EXPECT_EQ(torch::matmul(a, a).scalar_type(), at::kBFloat16);
    {
      const Autocast inner(at::kCPU, at::kHalf);
      EXPECT_EQ(torch::matmul(a, a).scalar_type(), at::kHalf);
      const Autocast off(at::kCPU, at::kBFloat16, false);
      EXPECT_EQ(torch::matmul(a, a).scalar_type(), at::kFloat);
    }
    EXPECT_EQ(torch::matmul(a, a).scalar_type(), at::kBFloat16);
  }
  EXPECT_EQ(torch::matmul(a, a).scalar_type(), at::kFloat);
  EXPECT_THROW(Autocast(at::kCPU, at::kFloat), std::invalid_argument);
  EXPECT_EQ(torch::matmul(a, a).scalar_type(), at::kFloat);
}

TEST(Autocast, LeavesGradientsInFloat32) {
  run_torch_ranks(2, [](Collective& collective) {
    auto net = small_net();
    DataParallel parallel(net.ptr(), collective);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    for (int pass = 0; pass < 3; ++pass) {
      optimizer.zero_grad();
      at::Tensor loss;
      {
        const Autocast autocast(at::kCPU);
        const auto output = parallel.forward(net, samples_of(collective.rank(), pass));
        EXPECT_EQ(output.scalar_type(), at::kBFloat16);
        loss = output.to(at::kFloat).pow(2).mean();
      }
      loss.backward();
      for (const at::Tensor& parameter : net->parameters())
        EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
      parallel.step(optimizer);
    }
    expect_equal_on_all_ranks(flat(net->parameters()), collective);
  });
}

// Ten classes, each with its own pattern under noise: accuracy after a few epochs, in float32 or
// under autocast.
double accuracy_with(Collective& collective, bool bf16) {
  torch::manual_seed(11);
  const auto patterns = torch::randn({10, 3, 8, 8});
  const auto labels = torch::arange(400) % 10;
  const auto images = patterns.index_select(0, labels) + 1.5 * torch::randn({400, 3, 8, 8});
  torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)),
                            torch::nn::BatchNorm2d(8), torch::nn::ReLU(), torch::nn::Flatten(),
                            torch::nn::Linear(512, 10));
  DataParallel parallel(net.ptr(), collective);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  const auto run = [&](const at::Tensor& batch) {
    const Autocast autocast(at::kCPU, at::kBFloat16, bf16);
    return parallel.forward(net, batch).to(at::kFloat);
  };
  for (int epoch = 0; epoch < 4; ++epoch) {
    for (int at = collective.rank() * 20; at < 280; at += 40) {
      optimizer.zero_grad();
      torch::nn::functional::cross_entropy(run(images.slice(0, at, at + 20)),
                                           labels.slice(0, at, at + 20))
          .backward();
      parallel.step(optimizer);
    }
  }
  const at::NoGradGuard no_grad;
  net->eval();
  const auto found = run(images.slice(0, 300)).argmax(1);
  return found.eq(labels.slice(0, 300)).to(at::kDouble).mean().item<double>();
}

TEST(Autocast, LearnsAsWellAsFloat32) {
  run_torch_ranks(2, [](Collective& collective) {
    const double plain = accuracy_with(collective, false);
    EXPECT_GT(plain, 0.8);
    EXPECT_NEAR(accuracy_with(collective, true), plain, 0.0101);
  });
}

TEST(GradScaler, AllRanksSkipAStepThatIsInfiniteOnOne) {
  for (const int ranks : {2, 3}) {
    run_torch_ranks(ranks, [](Collective& collective) {
      auto net = small_net();
      DataParallel parallel(net.ptr(), collective);
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      GradScaler scaler({.initial_scale = 1024, .growth_interval = 2});
      std::vector<std::tuple<bool, double>> steps;
      for (int pass = 0; pass < 5; ++pass) {
        optimizer.zero_grad();
        auto loss = parallel.forward(net, samples_of(collective.rank(), pass)).pow(2).mean();
        if (pass == 1 && collective.rank() == 1)
          loss = loss * std::numeric_limits<float>::infinity();
        const auto before = flat(net->parameters()).clone();
        scaler.scale(loss).backward();
        const bool has_stepped = scaler.step(parallel, optimizer);
        EXPECT_EQ(has_stepped, !torch::equal(before, flat(net->parameters())));
        steps.emplace_back(has_stepped, scaler.scale());
      }
      const std::vector<std::tuple<bool, double>> expected{
          {true, 1024}, {false, 512}, {true, 512}, {true, 1024}, {true, 1024}};
      EXPECT_EQ(steps, expected);
      expect_equal_on_all_ranks(flat(net->parameters()), collective);
    });
  }
}

TEST(GradScaler, GivesTheGradientsOfTheLoss) {
  run_torch_ranks(2, [](Collective& collective) {
    std::vector<at::Tensor> gradients;
    for (const bool enabled : {false, true}) {
      auto net = small_net();
      DataParallel parallel(net.ptr(), collective);
      GradScaler scaler({.enabled = enabled});
      scaler.scale(parallel.forward(net, samples_of(collective.rank(), 0)).pow(2).mean())
          .backward();
      // A second call changes nothing: a program clips between the two.
      EXPECT_TRUE(scaler.unscale(net->parameters()));
      EXPECT_TRUE(scaler.unscale(net->parameters()));
      std::vector<at::Tensor> found;
      for (const at::Tensor& parameter : net->parameters()) found.push_back(parameter.grad());
      gradients.push_back(flat(found));
    }
    // The scale is a power of two.
    EXPECT_TRUE(torch::equal(gradients[0], gradients[1]));
  });
}

TEST(GradScaler, ReadsOneNumberForAllTypesOfGradients) {
  const std::vector types{at::kFloat, at::kDouble, at::kBFloat16};
  // Each type in turn has the infinity, and then none has it.
  for (std::size_t infinite = 0; infinite <= types.size(); ++infinite) {
    std::vector<at::Tensor> parameters;
    for (std::size_t i = 0; i < types.size(); ++i) {
      parameters.push_back(torch::ones({2}, types[i]).requires_grad_(true));
      const double number = i == infinite ? std::numeric_limits<double>::infinity() : 64.0;
      parameters.back().mutable_grad() = torch::full({2}, number, types[i]);
    }
    GradScaler scaler({.initial_scale = 32});
    const CountedOperations counted;
    EXPECT_EQ(scaler.unscale(parameters), infinite == types.size());
    EXPECT_EQ(counted.of("item"), 1) << "on a GPU the host waits there";
    for (std::size_t i = 0; i < types.size(); ++i) {
      if (i == infinite) continue;
      EXPECT_TRUE(torch::equal(parameters[i].grad(), torch::full({2}, 2.0, types[i])));
    }
  }
}

TEST(GradScaler, RanksThatHoldPartsAgree) {
  run_torch_ranks(2, [](Collective& collective) {
    auto weight = torch::ones({2}, torch::requires_grad());
    weight.mutable_grad() =
        torch::full({2}, collective.rank() == 0 ? 1.0F : std::numeric_limits<float>::quiet_NaN());
    GradScaler alone;
    EXPECT_EQ(alone.unscale({weight}), collective.rank() == 0);
    GradScaler agreed({}, &collective);
    EXPECT_FALSE(agreed.unscale({weight}));
  });
}

// An optimizer whose steps fail while it is told so.
struct FailingSgd : torch::optim::SGD {
  using torch::optim::SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    if (fails) throw std::runtime_error("a step that fails");
    return torch::optim::SGD::step(std::move(closure));
  }
  bool fails = true;
};

TEST(GradScaler, DividesTheGradientsAfterAStepThatFailed) {
  run_torch_ranks(2, [](Collective& collective) {
    auto net = small_net();
    DataParallel parallel(net.ptr(), collective);
    FailingSgd optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
    GradScaler scaler({.initial_scale = 1024});
    const auto pass = [&](double scale) {
      optimizer.zero_grad();
      (parallel.forward(net, samples_of(collective.rank(), 0)).pow(2).mean() * scale).backward();
      return net->parameters()[0].grad().clone();
    };
    const at::Tensor plain = pass(1);
    pass(scaler.scale());
    EXPECT_THROW(scaler.step(parallel, optimizer), std::runtime_error);
    optimizer.fails = false;
    pass(scaler.scale());
    EXPECT_TRUE(scaler.step(parallel, optimizer));
    EXPECT_TRUE(torch::equal(net->parameters()[0].grad(), plain));
  });
}

TEST(GradScaler, KeepsItsStateAndRefusesNonsense) {
  GradScaler scaler({.growth_interval = 3});
  scaler.update(true);
  scaler.update(true);
  GradScaler resumed({.growth_interval = 3});
  resumed.load(scaler.state());
  resumed.update(true);
  EXPECT_EQ(resumed.scale(), 2 * 65536.0);
  EXPECT_THROW(GradScaler({.initial_scale = 0}), std::invalid_argument);
  EXPECT_THROW(GradScaler({.growth_factor = 1}), std::invalid_argument);
  EXPECT_THROW(GradScaler({.backoff_factor = 1}), std::invalid_argument);
  EXPECT_THROW(GradScaler({.growth_interval = 0}), std::invalid_argument);
  EXPECT_THROW(resumed.load({.scale = -1}), std::invalid_argument);
}

TEST(GradScaler, AHalfLossGrowsBeyondSixteenBits) {
  const at::Tensor scaled = GradScaler().scale(torch::tensor(2.0, torch::kHalf));
  EXPECT_EQ(scaled.scalar_type(), torch::kFloat);
  EXPECT_EQ(scaled.item<double>(), 2 * 65536.0);
  EXPECT_EQ(GradScaler().scale(torch::tensor(2.0, torch::kDouble)).scalar_type(), torch::kDouble);
}

TEST(MasterWeights, KeepStepsThatSixteenBitsLose) {
  run_torch_ranks(2, [](Collective& collective) {
    auto net = small_net();
    MasterWeights masters(*net, at::kBFloat16);
    const auto before = flat(masters.parameters()).clone();
    DataParallel parallel(net.ptr(), collective);
    torch::optim::SGD optimizer(masters.parameters(), 1e-4);
    for (int pass = 0; pass < 3; ++pass) {
      optimizer.zero_grad();
      net->zero_grad();
      parallel.forward(net, samples_of(collective.rank(), pass).to(at::kBFloat16))
          .pow(2)
          .mean()
          .backward();
      masters.step(parallel, optimizer);
    }
    // Three steps of a ten-thousandth: far less than bfloat16 can tell from nothing.
    EXPECT_GT((flat(masters.parameters()) - before).abs().max().item<double>(), 0);
    EXPECT_LT((flat(masters.parameters()) - before).abs().max().item<double>(), kBFloat16Rounding);
    EXPECT_TRUE(
        torch::equal(flat(net->parameters()), flat(masters.parameters()).to(at::kBFloat16)));
    expect_equal_on_all_ranks(flat(masters.parameters()), collective);
  });
}

TEST(MasterWeights, WithAScalerSkipTogether) {
  run_torch_ranks(2, [](Collective& collective) {
    auto net = small_net();
    MasterWeights masters(*net, at::kHalf);
    DataParallel parallel(net.ptr(), collective);
    torch::optim::SGD optimizer(masters.parameters(), 0.1);
    GradScaler scaler({.initial_scale = 1e30});  // no gradient in 16 bits bears it
    const auto before = flat(masters.parameters()).clone();
    scaler
        .scale(parallel.forward(net, samples_of(collective.rank(), 0).to(at::kHalf))
                   .to(at::kFloat)
                   .pow(2)
                   .mean())
        .backward();
    EXPECT_FALSE(masters.step(parallel, optimizer, scaler));
    EXPECT_TRUE(torch::equal(before, flat(masters.parameters())));
  });
}

TEST(MasterWeights, AreWhatIsUnscaledAndClipped) {
  run_torch_ranks(2, [](Collective& collective) {
    auto net = small_net();
    MasterWeights masters(*net, at::kHalf);
    DataParallel parallel(net.ptr(), collective);
    torch::optim::SGD optimizer(masters.parameters(), 1.0);
    GradScaler scaler({.initial_scale = 64});
    const auto before = flat(masters.parameters()).clone();
    scaler
        .scale(parallel.forward(net, samples_of(collective.rank(), 0).to(at::kHalf))
                   .to(at::kFloat)
                   .pow(2)
                   .mean())
        .backward();
    GradScaler other;
    EXPECT_THROW(other.unscale(net->parameters()), std::invalid_argument);
    masters.take_gradients();
    EXPECT_TRUE(scaler.unscale(masters.parameters()));
    torch::nn::utils::clip_grad_norm_(masters.parameters(), 0.01);
    EXPECT_TRUE(masters.step(parallel, optimizer, scaler));
    EXPECT_NEAR((flat(masters.parameters()) - before).norm().item<double>(), 0.01, 1e-4);
  });
}

TEST(MasterWeights, RefuseAnOptimizerOfTheModulesOwnParameters) {
  run_torch_ranks(2, [](Collective& collective) {
    auto net = small_net();
    MasterWeights masters(*net, at::kBFloat16);
    DataParallel parallel(net.ptr(), collective);
    torch::optim::SGD wrong(net->parameters(), 0.1);
    parallel.forward(net, samples_of(collective.rank(), 0).to(at::kBFloat16)).mean().backward();
    EXPECT_THROW(masters.step(parallel, wrong), std::invalid_argument);
    GradScaler scaler;
    EXPECT_THROW(masters.step(parallel, wrong, scaler), std::invalid_argument);
  });
}

TEST(MasterWeights, AreMadeBeforeAGradientIs) {
  auto net = small_net();
  EXPECT_THROW(MasterWeights(*net, at::kDouble), std::invalid_argument);
  net->forward(torch::ones({1, 20})).sum().backward();
  EXPECT_THROW(MasterWeights(*net, at::kBFloat16), std::invalid_argument);
}

// The largest error of the averages, as part of the bound's sum |g|/N. It is against those of
// single ranks added in double.
double error_with(const CommHook& hook, Collective& collective) {
  const auto gradients_of = [&](int rank, Collective& ranks, bool hooked) {
    auto net = small_net();
    net->to(at::kBFloat16);
    DataParallel parallel(net.ptr(), ranks);
    if (hooked) parallel.comm_hook(hook);
    parallel.forward(net, samples_of(rank, 0).to(at::kBFloat16)).pow(2).sum().backward();
    std::vector<at::Tensor> found;
    for (const at::Tensor& parameter : net->parameters()) found.push_back(parameter.grad());
    return flat(found).to(at::kDouble);
  };
  const auto alone = make_alone_collective();
  at::Tensor truth = torch::zeros({1}, at::kDouble);
  at::Tensor bound = torch::zeros({1}, at::kDouble);
  for (int rank = 0; rank < collective.world_size(); ++rank) {
    const auto local = gradients_of(rank, *alone, false) / collective.world_size();
    truth = truth + local;
    bound = bound + local.abs();
  }
  const auto error = (gradients_of(collective.rank(), collective, true) - truth).abs();
  return (error / (bound + 1e-30)).max().item<double>();
}

TEST(Float32Sum, RoundsOnceWhereSixteenBitsRoundEachTime) {
  run_torch_ranks(4, [](Collective& collective) {
    EXPECT_LE(error_with(float32_sum_hook(), collective), kBFloat16Rounding * 1.001);
    EXPECT_LE(error_with(all_reduce_hook(), collective),
              collective.world_size() * kBFloat16Rounding);
  });
}

}  // namespace
}  // namespace ddprun::worker
