// Passes that leave parameters out, or come by one several times. They have find_unused_parameters,
// static_graph, ignored parameters, and a pass that all ranks give up.
#include <ddprun/data_parallel.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <array>
#include <map>
#include <optional>
#include <stdexcept>

#include "tests/worker/torch_ranks.h"
#include "tests/worker/training/data_parallel/counting_collective.h"

namespace ddprun::worker {
namespace {

const DataParallelOptions kFindUnused{.find_unused_parameters = true};

TEST(UnusedParameters, KeepTheirGradientWhereNobodyUsedThem) {
  for (const bool view : {true, false}) {
    run_torch_ranks(2, [view](Collective& collective) {
      Chain net;
      DataParallel parallel(net.ptr(), collective,
                            {.gradient_as_bucket_view = view, .find_unused_parameters = true});
      parallel.forward(net, torch::full({4}, collective.rank() * 2), false).sum().backward();
      EXPECT_EQ(first_of(net->first.grad()), 1.0F);
      EXPECT_FALSE(net->rare.grad().defined()) << "undefined stays undefined";
      EXPECT_NO_THROW(parallel.check_reduced());
      parallel.forward(net, torch::full({4}, collective.rank() * 2)).sum().backward();
      EXPECT_EQ(first_of(net->rare.grad()), 1.0F);
      parallel.forward(net, torch::ones({4}), false).sum().backward();
      EXPECT_EQ(first_of(net->rare.grad()), 1.0F) << "an old value stays";
    });
  }
}

TEST(UnusedParameters, GetTheAverageWithZeroWhereOnlyOneRankUsedThem) {
  for (const bool view : {true, false}) {
    run_torch_ranks(2, [view](Collective& collective) {
      Chain net;
      DataParallel parallel(net.ptr(), collective,
                            {.gradient_as_bucket_view = view, .find_unused_parameters = true});
      parallel.forward(net, torch::full({4}, 3.0), collective.rank() == 1).sum().backward();
      EXPECT_EQ(first_of(net->first.grad()), 3.0F);
      EXPECT_EQ(first_of(net->rare.grad()), 1.5F);
    });
  }
}

TEST(UnusedParameters, CountThoseOfAccumulatingPasses) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective, kFindUnused);
    {
      const auto no_sync = parallel.no_sync();
      parallel.forward(net, torch::full({4}, 2.0), collective.rank() == 0).sum().backward();
    }
    parallel.forward(net, torch::ones({4}), false).sum().backward();
    EXPECT_EQ(first_of(net->rare.grad()), 1.0F) << "rank 0 used it under NoSync";
  });
}

// Two outputs, each with a parameter of its own.
struct TwoHeadsImpl : torch::nn::Module {
  TwoHeadsImpl() {
    left = register_parameter("left", torch::ones(2));
    right = register_parameter("right", torch::ones(2));
  }
  std::map<std::string, std::optional<torch::Tensor>> forward(const torch::Tensor& x) {
    return {{"left", x * left}, {"right", x * right}, {"none", std::nullopt}};
  }
  torch::Tensor left, right;
};
TORCH_MODULE(TwoHeads);

TEST(UnusedParameters, MayBeThoseOfAnOutputThatTheLossLeavesOut) {
  run_torch_ranks(2, [](Collective& collective) {
    TwoHeads net;
    DataParallel parallel(net.ptr(), collective, kFindUnused);
    parallel.forward(net, torch::ones({2}))["left"]->sum().backward();
    EXPECT_EQ(first_of(net->left.grad()), 1.0F);
    EXPECT_FALSE(net->right.grad().defined());
    EXPECT_NO_THROW(parallel.check_reduced());
  });
}

struct Opaque {
  torch::Tensor value;
};

struct OpaqueNetImpl : torch::nn::Module {
  OpaqueNetImpl() { weight = register_parameter("weight", torch::ones(2)); }
  Opaque forward(const torch::Tensor& x) { return {x * weight}; }
  torch::Tensor weight;
};
TORCH_MODULE(OpaqueNet);

TEST(UnusedParameters, NeedOutputsThatCanBeFollowed) {
  run_torch_ranks(1, [](Collective& collective) {
    OpaqueNet net;
    DataParallel parallel(net.ptr(), collective, kFindUnused);
    const auto message = message_of([&] { parallel.forward(net, torch::ones({2})); });
    EXPECT_EQ(message.find("find_unused_parameters and static_graph need the outputs"), 0U)
        << message;
    DataParallel plain(net.ptr(), collective);
    plain.forward(net, torch::ones({2})).value.sum().backward();
    EXPECT_NO_THROW(plain.check_reduced());
  });
}

TEST(UnusedParameters, SkipABucketThatIsWhollyUnusedWhenAsked) {
  for (const bool skip : {true, false}) {
    run_torch_ranks(2, [skip](Collective& inner) {
      CountingCollective collective(inner);
      Chain net;
      DataParallel parallel(net.ptr(), collective,
                            {.bucket_cap_bytes = 1,
                             .find_unused_parameters = true,
                             .skip_all_reduce_unused_params = skip});
      parallel.forward(net, torch::ones({4}), false).sum().backward();
      // Two or three buckets, and the map of used parameters.
      EXPECT_EQ(collective.summed.size(), skip ? 3U : 4U);
      EXPECT_FALSE(net->rare.grad().defined());
      EXPECT_EQ(parallel.buckets(), (std::vector<std::vector<std::size_t>>{{2}, {1}, {0}}));
    });
  }
}

// View mode: the old gradient lies in the bucket that does not travel.
TEST(UnusedParameters, KeepTheirGradientWhereTheirBucketIsSkipped) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective,
                          {.bucket_cap_bytes = 1,
                           .find_unused_parameters = true,
                           .skip_all_reduce_unused_params = true});
    parallel.forward(net, torch::full({4}, 8.0)).sum().backward();
    for (int pass = 0; pass < 3; ++pass) {
      parallel.forward(net, torch::ones({4}), false).sum().backward();
      EXPECT_EQ(first_of(net->rare.grad()), 8.0F);
    }
  });
}

TEST(UnusedParameters, MayHaveSparseGradients) {
  run_torch_ranks(2, [](Collective& collective) {
    struct NetImpl : torch::nn::Module {
      torch::nn::Embedding rows{register_module(
          "rows", torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 2).sparse(true)))};
      torch::Tensor bias{register_parameter("bias", torch::zeros({2}))};
      torch::Tensor forward(bool look_up) {
        return look_up ? bias + rows(torch::tensor({1})) : bias + 1;
      }
    };
    const auto net = std::make_shared<NetImpl>();
    DataParallel parallel(net, collective, kFindUnused);
    parallel.forward(net, false).sum().backward();
    EXPECT_FALSE(net->rows->weight.grad().defined()) << "undefined stays undefined";
    parallel.forward(net, collective.rank() == 1).sum().backward();
    EXPECT_EQ(net->rows->weight.grad().to_dense()[1][0].item<float>(), 0.5F);
    parallel.forward(net, false).sum().backward();
    EXPECT_EQ(net->rows->weight.grad().to_dense()[1][0].item<float>(), 0.5F);
  });
}

TEST(StaticGraph, TrainsWithWhatNoPassUses) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective, {.static_graph = true});
    for (int pass = 1; pass <= 4; ++pass) {
      parallel.forward(net, torch::full({4}, collective.rank() * 2), false).sum().backward();
      EXPECT_EQ(first_of(net->first.grad()), static_cast<float>(pass));
      EXPECT_FALSE(net->rare.grad().defined());
      EXPECT_NO_THROW(parallel.check_reduced());
      EXPECT_EQ(parallel.buckets_rebuilt(), pass >= 3);
    }
  });
}

TEST(StaticGraph, SaysThatTheGraphHasChanged) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective, {.static_graph = true});
    parallel.forward(net, torch::ones({4}), false).sum().backward();
    const auto message =
        message_of([&] { parallel.forward(net, torch::ones({4})).sum().backward(); });
    EXPECT_EQ(message.find("Your training graph has changed in this iteration"), 0U) << message;
    EXPECT_NE(message.find("2 ('rare')"), std::string::npos) << message;
    EXPECT_THROW(parallel.check_reduced(), std::runtime_error);
  });
}

TEST(StaticGraph, NamesWhatALaterPassLeavesOut) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective, {.static_graph = true});
    parallel.forward(net, torch::ones({4})).sum().backward();
    parallel.forward(net, torch::ones({4}), false).sum().backward();
    const auto message = message_of([&] { parallel.check_reduced(); });
    EXPECT_NE(message.find("2 ('rare')"), std::string::npos) << message;
  });
}

TEST(Ignored, ParametersAreNeitherCopiedNorSummed) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    {
      const torch::NoGradGuard no_grad;
      net->rare.fill_(collective.rank());
      net->first.fill_(collective.rank());
    }
    DataParallel parallel(net.ptr(), collective, {.ignore = {"rare"}});
    EXPECT_EQ(first_of(net->first), 0.0F);
    EXPECT_EQ(first_of(net->rare), static_cast<float>(collective.rank()));
    parallel.forward(net, torch::ones({4})).sum().backward();
    EXPECT_EQ(first_of(net->first.grad()), 0.5F);
    EXPECT_EQ(first_of(net->rare.grad()), 0.0F);
    parallel.forward(net, torch::ones({4}), false).sum().backward();
    EXPECT_NO_THROW(parallel.check_reduced());
  });
}

TEST(Sparse, GradientsAreAveragedByRow) {
  run_torch_ranks(3, [](Collective& collective) {
    torch::nn::Embedding net(torch::nn::EmbeddingOptions(6, 2).sparse(true));
    DataParallel parallel(net.ptr(), collective);
    const int rank = collective.rank();
    parallel.forward(net, torch::tensor({0, rank + 1, rank + 1})).sum().backward();
    const auto gradient = net->weight.grad();
    ASSERT_EQ(gradient.layout(), at::kSparse);
    const auto expected = torch::tensor({3.0F, 2.0F, 2.0F, 2.0F, 0.0F, 0.0F}) / 3;
    EXPECT_TRUE(torch::allclose(gradient.to_dense().select(1, 0), expected)) << gradient.to_dense();
  });
}

// The values of a sparse gradient may be those of the gradient that goes on to the layers below.
// PyTorch 2.11 divides them in place, for all.
TEST(Sparse, AverageLeavesOtherGradientsAlone) {
  run_torch_ranks(2, [](Collective& collective) {
    struct NetImpl : torch::nn::Module {
      torch::nn::Embedding rows{register_module(
          "rows", torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 2).sparse(true)))};
      torch::Tensor bias{register_parameter("bias", torch::zeros({3, 2}))};
      torch::Tensor forward(const torch::Tensor& looked_up) { return bias + rows(looked_up); }
    };
    const auto net = std::make_shared<NetImpl>();
    DataParallel parallel(net, collective);
    parallel.forward(net, torch::tensor({0, 1, 2})).sum().backward();
    EXPECT_EQ(first_of(net->bias.grad()), 1.0F);
    EXPECT_EQ(first_of(net->rows->weight.grad().to_dense()), 1.0F);
  });
}

// More than one gather can carry.
TEST(Sparse, GradientsMayBeLarge) {
  run_torch_ranks(2, [](Collective& collective) {
    constexpr std::int64_t kManyRows = 40'000;
    torch::nn::Embedding net(torch::nn::EmbeddingOptions(kManyRows, 4).sparse(true));
    DataParallel parallel(net.ptr(), collective);
    // Rank 1 brings a few rows only.
    const auto rows = torch::arange(collective.rank() == 0 ? kManyRows : 7);
    parallel.forward(net, rows).sum().backward();
    const auto gradient = net->weight.grad().to_dense();
    EXPECT_EQ(gradient[6][3].item<float>(), 1.0F);
    EXPECT_EQ(gradient[kManyRows - 1][3].item<float>(), 0.5F);
  });
}

TEST(Complex, ParametersAreAveragedAsPairs) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    net->to(torch::kComplexFloat);
    for (at::Tensor* weight : {&net->first, &net->second, &net->rare}) {
      ASSERT_TRUE(weight->is_complex());
    }
    DataParallel parallel(net.ptr(), collective);
    const auto x =
        torch::full({4}, c10::complex<float>(collective.rank() == 0 ? 2.0F : 4.0F, 1.0F));
    torch::real(parallel.forward(net, x)).sum().backward();
    const auto gradient = net->first.grad()[0].item<c10::complex<float>>();
    EXPECT_EQ(gradient, c10::complex<float>(3.0F, -1.0F));
  });
}

TEST(Reset, LetsAllRanksGoOnAfterOneHasThrown) {
  run_torch_ranks(3, [](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective, {.bucket_cap_bytes = 1});
    torch::optim::SGD optimizer(net->parameters(), 0.5);
    const auto train = [&] {
      optimizer.zero_grad();
      parallel.forward(net, torch::ones({4})).sum().backward();
      parallel.step(optimizer);
    };
    train();
    train();
    bool fails = true;
    net->first.register_hook([&](const at::Tensor& gradient) {
      if (fails && collective.rank() == 1) throw std::runtime_error("bad sample");
      return gradient;
    });
    const float before = first_of(net->second);
    const auto message = message_of(train);
    EXPECT_NE(message.find(collective.rank() == 1 ? "bad sample" : " has called reset()"),
              std::string::npos)
        << message;
    EXPECT_NE(message_of([&] { parallel.step(optimizer); }), "");
    EXPECT_EQ(first_of(net->second), before);
    parallel.reset();
    EXPECT_FALSE(net->second.grad().defined());
    fails = false;
    train();
    EXPECT_NE(first_of(net->second), before);
    double weight = first_of(net->second);
    collective.sum({&weight, 1});
    EXPECT_EQ(static_cast<float>(weight / 3), first_of(net->second)) << "ranks have parted";
  });
}

// Passes under NoSync turn the next copy of the buffers off; a forward() that throws comes before
// that.
TEST(Reset, CopiesTheBuffersAgain) {
  run_torch_ranks(2, [](Collective& collective) {
    torch::nn::Sequential net(torch::nn::BatchNorm1d(2), torch::nn::Linear(2, 2));
    DataParallel parallel(net.ptr(), collective);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    const auto backward = [&](int columns) {
      parallel.forward(net, torch::randn({8, columns})).sum().backward();
    };
    torch::manual_seed(collective.rank());
    backward(2);
    parallel.step(optimizer);
    {
      const auto no_sync = parallel.no_sync();
      backward(2);
    }
    // One rank cannot even begin.
    EXPECT_NE(message_of([&] { backward(collective.rank() == 1 ? 3 : 2); }), "");
    parallel.reset();
    backward(2);
    parallel.step(optimizer);
    parallel.before_forward();
    double mean = first_of(net->named_buffers()["0.running_mean"]);
    const double mine = mean;
    collective.sum({&mean, 1});
    EXPECT_EQ(mean, 2 * mine);
  });
}

TEST(Reset, IsRefusedWhereARankHasMadeAStepMore) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective);
    torch::optim::SGD optimizer(net->parameters(), 0.5);
    parallel.forward(net, torch::ones({4})).sum().backward();
    if (collective.rank() == 0) parallel.step(optimizer);
    const auto message = message_of([&] { parallel.reset(); });
    EXPECT_NE(message.find("made 1"), std::string::npos) << message;
    EXPECT_NE(message.find("made 0"), std::string::npos) << message;
    EXPECT_THROW(parallel.check_reduced(), std::runtime_error);
  });
}

TEST(Reset, IsRefusedWhereARankHasSummedMore) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective);
    parallel.forward(net, torch::ones({4})).sum().backward();
    // One rank finds its gradient replaced when the sums are complete; the other has finished.
    if (collective.rank() == 1) {
      net->first.register_hook([&net](const at::Tensor& gradient) {
        net->second.mutable_grad() = net->second.grad().clone();
        return gradient;
      });
    }
    const auto failed =
        message_of([&] { parallel.forward(net, torch::ones({4})).sum().backward(); });
    EXPECT_EQ(failed.empty(), collective.rank() == 0) << failed;
    const auto message = message_of([&] { parallel.reset(); });
    EXPECT_EQ(message.find("reset: rank "), 0U) << message;
    EXPECT_NE(message.find("must start anew from a checkpoint"), std::string::npos) << message;
    EXPECT_THROW(parallel.check_reduced(), std::runtime_error);
  });
}

}  // namespace
}  // namespace ddprun::worker
