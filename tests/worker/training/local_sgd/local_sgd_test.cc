// LocalSgd beside a model of it: as many nets as ranks in each process, which are averaged by hand.
#include <ddprun/data_parallel.h>
#include <ddprun/local_sgd.h>
#include <ddprun/optimizers.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/worker/torch_ranks.h"
#include "tests/worker/training/data_parallel/counting_collective.h"

namespace ddprun::worker {
namespace {

constexpr double kTolerance = 1e-12;

torch::nn::Sequential made_net() {
  torch::manual_seed(3);
  torch::nn::Sequential net(torch::nn::Linear(5, 7), torch::nn::Tanh(), torch::nn::Linear(7, 2));
  net->to(torch::kDouble);
  return net;
}

SGD::Options options_of_sgd() { return SGD::Options(0.1).momentum(0.9); }

at::Tensor loss_of(const at::Tensor& output) { return output.pow(2).mean(); }

at::Tensor batch_of(std::int64_t step, int rank) {
  torch::manual_seed(100 * step + rank);
  return torch::randn({4, 5}, torch::kDouble) + rank;
}

// All ranks in one process.
class AllRanks {
 public:
  explicit AllRanks(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      nets_.push_back(made_net());
      optimizers_.push_back(std::make_unique<SGD>(nets_.back()->parameters(), options_of_sgd()));
    }
  }

  // A step of each rank, whose gradients are averaged over groups of so many ranks.
  void step(std::int64_t step, int group) {
    for (int rank = 0; rank < size(); ++rank) {
      optimizers_[at(rank)]->zero_grad();
      loss_of(nets_[at(rank)]->forward(batch_of(step, rank))).backward();
    }
    average(group, [](const at::Tensor& parameter) { return parameter.grad(); });
    for (const auto& optimizer : optimizers_) optimizer->step();
  }

  void average_parameters(int group) {
    average(group, [](const at::Tensor& parameter) { return parameter; });
  }

  std::vector<at::Tensor> parameters(int rank) const { return nets_[at(rank)]->parameters(); }

 private:
  int size() const { return static_cast<int>(nets_.size()); }
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

  template <typename Part>
  void average(int group, const Part& part) {
    const torch::NoGradGuard no_gradients;
    for (int first = 0; first < size(); first += group) {
      for (std::size_t i = 0; i < parameters(first).size(); ++i) {
        at::Tensor sum = torch::zeros_like(parameters(first)[i]);
        for (int rank = first; rank < first + group; ++rank) sum += part(parameters(rank)[i]);
        sum /= group;
        for (int rank = first; rank < first + group; ++rank) part(parameters(rank)[i]).copy_(sum);
      }
    }
  }

  std::vector<torch::nn::Sequential> nets_;
  std::vector<std::unique_ptr<SGD>> optimizers_;
};

void expect_close(const std::vector<at::Tensor>& ours, const std::vector<at::Tensor>& theirs,
                  std::int64_t step) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t i = 0; i < ours.size(); ++i)
    EXPECT_TRUE(torch::allclose(ours[i], theirs[i], 0, kTolerance)) << "step " << step << ": " << i;
}

// `groups`: by step, the ranks of an average of the parameters behind it; 0: none.
void expect_as_model(int ranks, const LocalSgdOptions& options, const std::vector<int>& groups) {
  run_torch_ranks(ranks, [&](Collective& collective) {
    auto net = made_net();
    DataParallel parallel(net.ptr(), collective);
    LocalSgd local(parallel, options);
    SGD optimizer(net->parameters(), options_of_sgd());
    AllRanks model(ranks);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const auto step = static_cast<std::int64_t>(i);
      optimizer.zero_grad();
      loss_of(parallel.forward(net, batch_of(step, collective.rank()))).backward();
      local.step(optimizer);
      model.step(step, step < options.warmup_steps ? ranks : options.gradient_ranks);
      if (groups[i] > 0) model.average_parameters(groups[i]);
      expect_close(net->parameters(), model.parameters(collective.rank()), step);
      EXPECT_EQ(local.steps(), step + 1);
    }
  });
}

TEST(LocalSgd, AveragesGradientsFirstAndThenParametersNowAndThen) {
  for (const int ranks : {2, 4}) {
    const int all = ranks;
    expect_as_model(ranks, {.warmup_steps = 2, .period = 3}, {0, 0, all, 0, 0, all, 0, 0, all});
    expect_as_model(ranks, {.period = 2}, {all, 0, all, 0});
  }
}

TEST(LocalSgd, GoesOnAveragingTheGradientsOfAHost) {
  expect_as_model(4, {.warmup_steps = 1, .period = 2, .gradient_ranks = 2}, {0, 4, 0, 4, 0});
  expect_as_model(2, {.warmup_steps = 1, .period = 2, .gradient_ranks = 2}, {0, 2, 0, 2, 0});
}

TEST(LocalSgd, AveragesOverMoreRanksMoreSeldom) {
  expect_as_model(4, {.warmup_steps = 1, .levels = {{2, 2}, {4, 4}}}, {0, 0, 2, 0, 4, 0, 2, 0, 4});
}

TEST(LocalSgd, AlsoTakesTheHookOfTheRanksThatGoOn) {
  run_torch_ranks(2, [](Collective& ranks) {
    auto net = made_net();
    DataParallel parallel(net.ptr(), ranks);
    int calls = 0;
    const CommHook hook = [&calls](Bucket& bucket, Collective& group) {
      ++calls;
      bucket.buffer().div_(group.world_size());
      bucket.sum();
    };
    LocalSgd local(parallel, {.warmup_steps = 1, .gradient_ranks = 2, .hook = hook});
    SGD optimizer(net->parameters(), options_of_sgd());
    for (int step = 0; step < 3; ++step) {
      loss_of(parallel.forward(net, batch_of(step, ranks.rank()))).backward();
      local.step(optimizer);
    }
    EXPECT_EQ(calls, 2);
  });
}

TEST(LocalSgd, AveragesWhatAnyRankHasAGradientOf) {
  run_torch_ranks(2, [](Collective& ranks) {
    Chain net;
    DataParallel parallel(net.ptr(), ranks, {.find_unused_parameters = true});
    LocalSgd local(parallel, {.period = 1});
    SGD optimizer(net->parameters(), SGD::Options(0.5));
    const auto x = torch::ones(4);
    parallel.forward(net, x, ranks.rank() == 1).sum().backward();
    local.step(optimizer);
    // Rank 1 has stepped from 1 to 0.5, and rank 0 not.
    EXPECT_EQ(first_of(net->rare), 0.75F);
    EXPECT_EQ(first_of(net->first), 0.5F);
  });
}

TEST(LocalSgd, SendsNothingInStepsBetween) {
  run_torch_ranks(2, [](Collective& ranks) {
    CountingCollective counting(ranks);
    auto net = made_net();
    DataParallel parallel(net.ptr(), counting);
    LocalSgd local(parallel, {.period = 3});
    SGD optimizer(net->parameters(), options_of_sgd());
    std::vector<int> calls;
    for (int step = 0; step < 6; ++step) {
      const int before = counting.calls;
      loss_of(parallel.forward(net, batch_of(step, ranks.rank()))).backward();
      local.step(optimizer);
      calls.push_back(counting.calls - before);
    }
    // The ranks tell which parameters have a gradient, and sum those.
    EXPECT_EQ(calls, (std::vector<int>{2, 0, 0, 2, 0, 0}));
  });
}

TEST(LocalSgd, GoesOnWhereARunHasEnded) {
  run_torch_ranks(2, [](Collective& ranks) {
    auto net = made_net();
    DataParallel parallel(net.ptr(), ranks);
    LocalSgd local(parallel, {.warmup_steps = 3, .period = 4});
    EXPECT_EQ(message_of([&] { local.resume(-1); }),
              "LocalSgd: resume() of -1 steps, expected 0 or more");
    local.resume(5);
    SGD optimizer(net->parameters(), options_of_sgd());
    std::string averaged;
    for (int step = 5; step < 12; ++step) {
      loss_of(parallel.forward(net, batch_of(step, ranks.rank()))).backward();
      parallel.step(optimizer);
      averaged += local.after_step(net->parameters()) ? 'a' : '-';
    }
    EXPECT_EQ(averaged, "--a---a");
    EXPECT_EQ(message_of([&] { local.resume(7); }),
              "LocalSgd: resume() comes before the first step, and once");
    expect_equal_on_all_ranks(net->parameters()[0], ranks);
  });
}

TEST(LocalSgd, OutlivesNoGroupThatItsDataParallelUses) {
  run_torch_ranks(2, [](Collective& ranks) {
    auto net = made_net();
    SGD optimizer(net->parameters(), options_of_sgd());
    DataParallel parallel(net.ptr(), ranks);
    {
      LocalSgd local(parallel, {.period = 2, .gradient_ranks = 2});
      loss_of(parallel.forward(net, batch_of(0, ranks.rank()))).backward();
      local.step(optimizer);
    }
    loss_of(parallel.forward(net, batch_of(1, ranks.rank()))).backward();
    parallel.step(optimizer);
    expect_equal_on_all_ranks(net->parameters()[0], ranks);
  });
}

struct MixedImpl : torch::nn::Module {
  explicit MixedImpl(int rank) {
    register_parameter("float", torch::full({3}, 1.0 + 2 * rank));
    register_parameter("half", torch::full({2, 2}, rank, torch::kHalf));
    register_parameter("complex",
                       torch::complex(torch::full({2}, 1.0 * rank), torch::full({2}, -2.0 * rank)));
    register_buffer("mean", torch::full({4}, 4.0 * rank, torch::kDouble));
    register_buffer("count", torch::full({}, 5 + rank, torch::kLong));
    register_buffer("flag", torch::full({1}, rank == 0, torch::kBool));
  }
};
TORCH_MODULE(Mixed);

TEST(LocalSgd, AverageOnDemandIsOfParametersAndBuffers) {
  for (const int ranks : {1, 2, 4}) {
    run_torch_ranks(ranks, [&](Collective& collective) {
      Mixed mixed(collective.rank());
      average(*mixed, collective);
      const double mean = (ranks - 1) / 2.0;  // of 0 … ranks-1
      const auto parameters = mixed->named_parameters();
      EXPECT_EQ(first_of(parameters["float"]), static_cast<float>(1 + 2 * mean));
      EXPECT_EQ(first_of(parameters["half"]), static_cast<float>(mean));
      EXPECT_EQ(first_of(torch::real(parameters["complex"])), static_cast<float>(mean));
      EXPECT_EQ(first_of(torch::imag(parameters["complex"])), static_cast<float>(-2 * mean));
      const auto buffers = mixed->named_buffers();
      EXPECT_EQ(buffers["mean"][3].item<double>(), 4 * mean);
      EXPECT_EQ(buffers["count"].item<std::int64_t>(), 5);
      EXPECT_TRUE(buffers["flag"].item<bool>());
    });
  }
}

TEST(LocalSgd, AnAverageOfUnlikeModulesEndsWithOneLine) {
  run_torch_ranks(2, [](Collective& ranks) {
    torch::nn::Linear net(3, 2 + ranks.rank());
    const auto message = message_of([&] { average(*net, ranks); });
    EXPECT_NE(message.find("average of parameters"), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  });
}

}  // namespace
}  // namespace ddprun::worker
