// The refusals of DataParallel at construction, and their words, in forked ranks over shared
// memory. An error of one rank reaches all of them.
#include <ddprun/data_parallel.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "tests/worker/torch_ranks.h"

namespace ddprun::worker {
namespace {

TEST(DataParallelErrors, RaiseADifferentParameterCountOnAllRanks) {
  run_torch_ranks(3, [](Collective& collective) {
    torch::nn::Sequential net(torch::nn::Linear(2, 2));
    if (collective.rank() == 2) net->push_back(torch::nn::Linear(2, 2));
    EXPECT_EQ(message_of([&] { const DataParallel parallel(net.ptr(), collective); }),
              "DDP expects same model across all ranks, but Rank 0 has 2 params, while rank 2 has "
              "inconsistent 4 params. Only rank 2 has '1.weight'.");
  });
}

TEST(DataParallelErrors, NameTheParameterThatARankLacks) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    const DataParallelOptions without_one{.ignore = collective.rank() == 1
                                                        ? std::vector<std::string>{"second"}
                                                        : std::vector<std::string>{}};
    EXPECT_EQ(message_of([&] { const DataParallel parallel(net.ptr(), collective, without_one); }),
              "DDP expects same model across all ranks, but Rank 0 has 3 params, while rank 1 has "
              "inconsistent 2 params. Only rank 0 has 'second'.");
  });
}

struct MatrixImpl : torch::nn::Module {
  explicit MatrixImpl(bool transposed) {
    weight =
        register_parameter("weight", transposed ? torch::ones({4, 3}).t() : torch::ones({3, 4}));
  }
  torch::Tensor forward(const torch::Tensor& x) { return torch::linear(x, weight); }
  torch::Tensor weight;
};
TORCH_MODULE(Matrix);

TEST(DataParallelErrors, RaiseOtherStridesOnAllRanksNamingTheParameter) {
  run_torch_ranks(3, [](Collective& collective) {
    Matrix net(/*transposed=*/collective.rank() == 1);
    const auto message = message_of([&] { const DataParallel parallel(net.ptr(), collective); });
    EXPECT_EQ(message.find("[1]: params[0] in this process with strides [1, 3] appears not to "
                           "match strides of the same param in process 0. There they are [4, 1]. "
                           "It is 'weight' on rank 1"),
              0U)
        << message;
  });
}

TEST(DataParallelErrors, WarnOfOtherStridesOfAGradientOnce) {
  for (const bool view : {true, false}) {
    run_torch_ranks(2, [view](Collective& collective) {
      Matrix net(/*transposed=*/false);
      DataParallel parallel(net.ptr(), collective, {.gradient_as_bucket_view = view});
      std::vector<std::string> lines;
      log::set_writer([&lines](std::string_view line) { lines.emplace_back(line); });
      for (int pass = 0; pass < 3; ++pass) {
        // Autograd adds to it, and keeps its strides.
        net->weight.mutable_grad() = torch::zeros({4, 3}).t();
        parallel.forward(net, torch::full({1, 4}, collective.rank() * 2.0)).sum().backward();
        EXPECT_TRUE(torch::equal(net->weight.grad(), torch::ones({3, 4})));
      }
      log::set_writer({});
      ASSERT_EQ(lines.size(), 1U);
      EXPECT_NE(lines[0].find("Grad strides do not match bucket view strides. First seen at "
                              "parameter 'weight'"),
                std::string::npos)
          << lines[0];
    });
  }
}

// The mistake of one rank, and the error message of all of them.
struct Mistake {
  const char* words;
  std::function<void(Collective&)> make;
};

std::vector<Mistake> mistakes() {
  const auto chain = [](Collective& ranks, const DataParallelOptions& options) {
    Chain net;
    const bool mistaken = ranks.rank() == 1;
    const DataParallel parallel(net.ptr(), ranks, mistaken ? options : DataParallelOptions{});
  };
  const auto frozen = [](Collective& ranks) {
    Chain net;
    for (const at::Tensor& parameter : net->parameters())
      parameter.requires_grad_(ranks.rank() > 0);
    const DataParallel parallel(net.ptr(), ranks);
  };
  const auto narrow = [](Collective& ranks) {
    torch::nn::Linear net(2, 2);
    if (ranks.rank() == 2) net->to(torch::kComplexHalf);
    const DataParallel parallel(net.ptr(), ranks);
  };
  const auto count = [](Collective& ranks) {
    torch::nn::Sequential net(torch::nn::Linear(2, 2));
    if (ranks.rank() == 2) net->push_back(torch::nn::Linear(2, 2));
    const DataParallel parallel(net.ptr(), ranks);
  };
  const auto matrix = [](Collective& ranks) {
    Matrix net(/*transposed=*/ranks.rank() == 2);
    const DataParallel parallel(net.ptr(), ranks);
  };
  return {
      {"DDP expects same model across all ranks", count},
      {"appears not to match strides", matrix},
      {"doesn't have any parameter that requires a gradient", frozen},
      {"'weight' has type", narrow},
      {"ignore: 'raer'", [=](auto& ranks) { chain(ranks, {.ignore = {"raer"}}); }},
      {"sparse_parameters: 'raer'",
       [=](auto& ranks) { chain(ranks, {.sparse_parameters = {"raer"}}); }},
      {"delay_all_reduce: 'raer'",
       [=](auto& ranks) { chain(ranks, {.delay_all_reduce = {"raer"}}); }},
      {"skip_all_reduce_unused_params needs",
       [=](auto& ranks) { chain(ranks, {.skip_all_reduce_unused_params = true}); }},
  };
}

TEST(DataParallelErrors, OfOneRankReachAllAtOnce) {
  run_torch_ranks(3, [](Collective& collective) {
    for (const auto& [words, make] : mistakes()) {
      collective.barrier();
      const auto begin = std::chrono::steady_clock::now();
      const auto message = message_of([&, &make = make] { make(collective); });
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << words;
      EXPECT_NE(message.find(words), std::string::npos) << message;
    }
  });
}

TEST(DataParallelErrors, RaiseADifferentShapeOnAllRanksNamingTheParameter) {
  run_torch_ranks(3, [](Collective& collective) {
    torch::nn::Sequential net(torch::nn::Linear(2, collective.rank() == 1 ? 3 : 4));
    const auto message = message_of([&] { const DataParallel parallel(net.ptr(), collective); });
    EXPECT_EQ(message.find("[1]: params[0] in this process with sizes [3, 2] appears not to match "
                           "sizes of the same param in process 0."),
              0U)
        << message;
    EXPECT_NE(message.find("'0.weight'"), std::string::npos) << message;
    EXPECT_NE(message.find("[4, 2]"), std::string::npos) << message;
  });
}

TEST(DataParallelErrors, RefuseNamesThatAreNowhereAndOptionsThatNeedAnother) {
  run_torch_ranks(1, [](Collective& collective) {
    const Chain net;
    const auto refusal = [&](const DataParallelOptions& options) {
      return message_of([&] { const DataParallel parallel(net.ptr(), collective, options); });
    };
    EXPECT_EQ(refusal({.ignore = {"rare", "raer"}}),
              "ignore: 'raer' is no parameter and no buffer of the model");
    EXPECT_EQ(refusal({.sparse_parameters = {"raer"}}),
              "sparse_parameters: 'raer' is no parameter of the model that needs a gradient");
    EXPECT_EQ(refusal({.skip_all_reduce_unused_params = true}),
              "skip_all_reduce_unused_params needs find_unused_parameters: without it nobody knows "
              "which parameters are unused");
  });
}

TEST(DataParallelErrors, RefuseAModelThatCannotBeTrained) {
  run_torch_ranks(1, [](Collective& collective) {
    const auto refusal = [&](const torch::nn::AnyModule& /*keeps alive*/,
                             const std::shared_ptr<torch::nn::Module>& module) {
      return message_of([&] { const DataParallel parallel(module, collective); });
    };
    torch::nn::Linear frozen(2, 2);
    for (at::Tensor& parameter : frozen->parameters()) parameter.requires_grad_(false);
    EXPECT_EQ(refusal(torch::nn::AnyModule(frozen), frozen.ptr())
                  .find("DistributedDataParallel is not needed when a module doesn't have any "
                        "parameter that requires a gradient."),
              0U);
    torch::nn::Linear narrow(2, 2);
    narrow->to(torch::kComplexHalf);
    EXPECT_NE(refusal(torch::nn::AnyModule(narrow), narrow.ptr()).find("'weight' has type"),
              std::string::npos);
  });
}

}  // namespace
}  // namespace ddprun::worker
