// The training program's view of DataParallel, in forked ranks over shared memory. Values are small
// integers, so that sums and averages are exact. Equality with PyTorch's reducer:
// reducer_parity_test.cc. data_parallel_errors_test.cc has its refusals.
#include <ddprun/data_parallel.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "tests/worker/counted_operations.h"
#include "tests/worker/torch_ranks.h"
#include "tests/worker/training/data_parallel/counting_collective.h"

namespace ddprun::worker {
namespace {

TEST(DataParallel, TakesRankZerosParametersFrozenOnesAndBuffers) {
  run_torch_ranks(3, [](Collective& collective) {
    const auto value = static_cast<double>(collective.rank() + 1);
    torch::nn::Sequential net(torch::nn::Linear(3, 2), torch::nn::BatchNorm1d(2));
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : net->parameters()) parameter.fill_(value);
    for (at::Tensor& buffer : net->buffers()) buffer.fill_(static_cast<int>(value));
    net->parameters()[1].requires_grad_(false);
    const DataParallel parallel(net.ptr(), collective);
    for (const at::Tensor& parameter : net->parameters()) EXPECT_EQ(first_of(parameter), 1.0F);
    for (const at::Tensor& buffer : net->buffers()) EXPECT_EQ(buffer.flatten()[0].item<int>(), 1);
    EXPECT_EQ(parallel.buckets(), (std::vector<std::vector<std::size_t>>{{0, 1, 2}}));
  });
}

TEST(DataParallel, LeavesWeightsAloneWithoutInitSync) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    const torch::NoGradGuard no_grad;
    net->first.fill_(collective.rank());
    const DataParallel parallel(net.ptr(), collective, {.init_sync = false});
    EXPECT_EQ(first_of(net->first), static_cast<float>(collective.rank()));
  });
}

TEST(DataParallel, CountsASharedParameterOnce) {
  run_torch_ranks(2, [](Collective& collective) {
    const torch::nn::Linear shared(2, 2);
    torch::nn::Sequential net(shared, shared);
    DataParallel parallel(net.ptr(), collective);
    EXPECT_EQ(parallel.buckets(), (std::vector<std::vector<std::size_t>>{{0, 1}}));
    parallel.forward(net, torch::ones({1, 2})).sum().backward();
    EXPECT_NO_THROW(parallel.check_reduced());
  });
}

TEST(DataParallel, AveragesOverRanks) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective);
    parallel.forward(net, torch::full({4}, collective.rank() == 0 ? 2.0 : 6.0)).sum().backward();
    for (const at::Tensor& parameter : net->parameters()) {
      EXPECT_TRUE(torch::equal(parameter.grad(), torch::full({4}, 4.0)));
    }
  });
}

TEST(DataParallel, KeepsEachDtypeInItsBucket) {
  run_torch_ranks(2, [](Collective& collective) {
    torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2));
    net[1]->to(torch::kDouble);
    DataParallel parallel(net.ptr(), collective);
    EXPECT_EQ(parallel.buckets(), (std::vector<std::vector<std::size_t>>{{2, 3}, {0, 1}}));
    parallel.before_forward();
    const auto half_way = net[0]->as<torch::nn::Linear>()->forward(torch::ones({1, 2}));
    const auto out = net[1]->as<torch::nn::Linear>()->forward(half_way.to(torch::kDouble));
    parallel.after_forward();
    out.sum().backward();
    EXPECT_EQ(net->parameters()[3].grad().scalar_type(), torch::kDouble);
    EXPECT_EQ(net->parameters()[3].grad()[0].item<double>(), 1.0);
    EXPECT_NO_THROW(parallel.check_reduced());
  });
}

TEST(DataParallel, HasGradientsInTheBucketFromTheFirstPassOn) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective);
    parallel.forward(net, torch::ones({4})).sum().backward();
    const auto parameters = net->parameters();
    const auto* first = static_cast<const std::byte*>(parameters[0].grad().data_ptr());
    EXPECT_EQ(parameters[1].grad().data_ptr(), first + parameters[0].nbytes());
    EXPECT_EQ(parameters[2].grad().data_ptr(), first + 2 * parameters[0].nbytes());
  });
}

TEST(DataParallel, LaunchesRebuiltBucketsInIndexOrderWhileBackwardRuns) {
  run_torch_ranks(2, [](Collective& inner) {
    CountingCollective collective(inner);
    Chain net;
    DataParallel parallel(net.ptr(), collective, {.bucket_cap_bytes = 1, .first_bucket_bytes = 1});
    for (int pass = 0; pass < 3; ++pass) {
      parallel.forward(net, torch::ones({4})).sum().backward();
    }
    EXPECT_EQ(parallel.buckets().size(), 3U);
    ASSERT_EQ(collective.summed.size(), 1U + 3U + 3U);
    EXPECT_LT(collective.summed[1].data, collective.summed[2].data);
    EXPECT_LT(collective.summed[2].data, collective.summed[3].data);
  });
}

// As torch.nn.parallel.DistributedDataParallel does with bucket_cap_mb given or not.
TEST(DataParallel, TakesACapAsTheFirstBucketsLimitToo) {
  run_torch_ranks(1, [](Collective& /*unused*/) {
    const auto alone = make_alone_collective();
    const auto buckets = [&alone](const DataParallelOptions& options) {
      Chain net(1 << 18);  // three parameters of 1 MiB
      DataParallel parallel(net.ptr(), *alone, options);
      for (int pass = 0; pass < 2; ++pass) {
        parallel.forward(net, torch::ones({1 << 18})).sum().backward();
      }
      std::vector<std::size_t> sizes;
      for (const auto& bucket : parallel.buckets()) sizes.push_back(bucket.size());
      return sizes;
    };
    using Sizes = std::vector<std::size_t>;
    constexpr std::size_t kMiB = std::size_t{1} << 20;
    EXPECT_EQ(buckets({}), (Sizes{1, 2}));
    EXPECT_EQ(buckets({.bucket_cap_bytes = 2 * kMiB}), (Sizes{2, 1}));
    EXPECT_EQ(buckets({.bucket_cap_bytes = kBucketCapBytes}), (Sizes{3}));
    EXPECT_EQ(buckets({.bucket_cap_bytes = 2 * kMiB, .first_bucket_bytes = kMiB}), (Sizes{1, 2}));
    EXPECT_EQ(buckets({.first_bucket_bytes = 2 * kMiB}), (Sizes{2, 1}));
  });
}

TEST(DataParallel, UsesRankZerosBucketsWhateverTheOrderElsewhere) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective, {.bucket_cap_bytes = 1, .first_bucket_bytes = 1});
    // The later operation's gradient comes first.
    const auto pass = [&](const at::Tensor& a, const at::Tensor& b) {
      parallel.before_forward();
      const auto out = (torch::ones({4}) * a) * b * net->rare;
      parallel.after_forward();
      out.sum().backward();
    };
    const bool root = collective.rank() == 0;
    for (int i = 0; i < 2; ++i) {
      pass(root ? net->first : net->second, root ? net->second : net->first);
    }
    EXPECT_EQ(parallel.buckets(), (std::vector<std::vector<std::size_t>>{{2}, {1}, {0}}));
    EXPECT_EQ(first_of(net->first.grad()), 2.0F);  // two passes of 1, accumulated
  });
}

TEST(NoSync, AccumulatesLocallyAndReducesTheSumAtTheEnd) {
  for (const bool view : {true, false}) {
    run_torch_ranks(2, [view](Collective& inner) {
      CountingCollective collective(inner);
      Chain net;
      DataParallel parallel(net.ptr(), collective, {.gradient_as_bucket_view = view});
      const int base = collective.rank() == 0 ? 10 : 20;
      for (int round = 0; round < 3; ++round) {
        const std::size_t sums_before = collective.summed.size();
        {
          const auto no_sync = parallel.no_sync();
          parallel.forward(net, torch::full({4}, base + 1)).sum().backward();
          parallel.forward(net, torch::full({4}, base + 2)).sum().backward();
        }
        EXPECT_EQ(first_of(net->first.grad()), static_cast<float>(2 * base + 3)) << "local";
        EXPECT_EQ(collective.summed.size(), sums_before);
        parallel.forward(net, torch::full({4}, base + 3)).sum().backward();
        EXPECT_EQ(first_of(net->first.grad()), (36.0F + 66.0F) / 2) << "round " << round;
        for (at::Tensor& parameter : net->parameters()) parameter.mutable_grad().zero_();
      }
    });
  }
}

TEST(NoSync, CountsWhereForwardRanNotBackward) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective);
    const auto out = parallel.forward(net, torch::full({4}, collective.rank() * 2));
    const auto no_sync = parallel.no_sync();
    out.sum().backward();
    EXPECT_EQ(first_of(net->first.grad()), 1.0F);
  });
}

TEST(Buffers, FollowRankZeroBeforeTheNextSynchronisingForward) {
  run_torch_ranks(2, [](Collective& inner) {
    CountingCollective collective(inner);
    torch::nn::Sequential net(torch::nn::BatchNorm1d(2));
    DataParallel parallel(net.ptr(), collective);
    const auto forward = [&] { return parallel.forward(net, torch::randn({8, 2})); };
    torch::manual_seed(collective.rank());
    forward().sum().backward();
    const at::Tensor running_mean = net->named_buffers()["0.running_mean"];
    const float own = first_of(running_mean);
    const int broadcasts = collective.broadcasts;
    parallel.before_forward();
    EXPECT_EQ(collective.broadcasts, broadcasts + 1);
    if (collective.rank() == 1)
      EXPECT_NE(first_of(running_mean), own);
    else
      EXPECT_EQ(first_of(running_mean), own);
    parallel.after_forward();

    {
      const torch::NoGradGuard evaluation;  // broadcasts once more, then turns the next one off
      forward();
      forward();
    }
    EXPECT_EQ(collective.broadcasts, broadcasts + 2);
    forward();
    EXPECT_EQ(collective.broadcasts, broadcasts + 2) << "the forward before did not synchronise";
  });
}

// However many there are, one call copies all whose memory is in order, whatever their types.
TEST(Buffers, ArePackedAtOnce) {
  run_torch_ranks(2, [](Collective& collective) {
    torch::nn::Sequential net;
    for (int i = 0; i < 20; ++i) net->push_back(torch::nn::BatchNorm2d(3));
    const auto odd = torch::view_as_complex(torch::ones({3, 2}));
    net->register_buffer("complex", odd);
    net->register_buffer("conjugate", odd.clone().conj());
    net->register_buffer("empty", torch::empty({0, 4}));
    net->register_buffer("transposed", torch::arange(6).to(torch::kFloat).view({2, 3}).t());
    DataParallel parallel(net.ptr(), collective);
    const torch::NoGradGuard no_grad;
    for (at::Tensor& buffer : net->buffers()) buffer.add_(collective.rank() + 1);
    const CountedOperations counted;
    parallel.before_forward();
    EXPECT_EQ(counted.of("_foreach_copy_"), 1);
    EXPECT_EQ(first_of(net->named_buffers()["19.running_mean"]), 1.0F);
    EXPECT_TRUE(torch::equal(
        net->named_buffers()["complex"],
        torch::view_as_complex(torch::tensor({{2.0F, 1.0F}, {2.0F, 1.0F}, {2.0F, 1.0F}}))));
    EXPECT_TRUE(torch::equal(net->named_buffers()["transposed"],
                             torch::arange(1, 7).to(torch::kFloat).view({2, 3}).t()));
    parallel.after_forward();
  });
}

TEST(Buffers, StayLocalWhenAsked) {
  run_torch_ranks(2, [](Collective& inner) {
    CountingCollective collective(inner);
    torch::nn::Sequential net(torch::nn::BatchNorm1d(2));
    DataParallel parallel(net.ptr(), collective, {.broadcast_buffers = false});
    const int after_construction = collective.broadcasts;
    for (int i = 0; i < 3; ++i) parallel.forward(net, torch::randn({8, 2})).sum().backward();
    EXPECT_EQ(collective.broadcasts, after_construction);
  });
}

// The log lines that the body writes.
std::vector<std::string> logged_by(const std::function<void()>& body) {
  std::vector<std::string> lines;
  log::set_writer([&lines](std::string_view line) { lines.emplace_back(line); });
  body();
  log::set_writer({});
  return lines;
}

TEST(DataParallel, WarnsOfAGraphOfGradientsOnce) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective);
    const auto lines = logged_by([&] {
      for (int pass = 0; pass < 2; ++pass) {
        net->zero_grad();
        const auto loss = parallel.forward(net, torch::full({4}, collective.rank())).pow(2).sum();
        loss.backward({}, /*retain_graph=*/true, /*create_graph=*/true);
      }
    });
    ASSERT_EQ(lines.size(), 1U);
    EXPECT_NE(lines[0].find("Using DistributedDataParallel with create_graph=True is not"),
              std::string::npos)
        << lines[0];
    EXPECT_EQ(first_of(net->first.grad()), 1.0F);
    EXPECT_FALSE(net->first.grad().requires_grad());
  });
}

TEST(DataParallel, WarnsOfASecondBackwardOnce) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective);
    const auto lines = logged_by([&] {
      for (int pass = 0; pass < 2; ++pass) {
        const auto loss = parallel.forward(net, torch::ones({4})).sum();
        loss.backward({}, /*retain_graph=*/true);
        loss.backward();
      }
    });
    ASSERT_EQ(lines.size(), 1U);
    EXPECT_NE(lines[0].find("backward() ran again after pass 1 was summed"), std::string::npos)
        << lines[0];
  });
}

TEST(DataParallelLife, LeavesGradientsReadableAndHooksRemoved) {
  run_torch_ranks(2, [](Collective& inner) {
    CountingCollective collective(inner);
    Chain net;
    std::optional<DataParallel> parallel(std::in_place, net.ptr(), collective);
    parallel->forward(net, torch::full({4}, 3.0)).sum().backward();
    parallel.reset();
    EXPECT_EQ(first_of(net->first.grad()), 3.0F);
    const std::size_t sums = collective.summed.size();
    net->forward(torch::ones({4})).sum().backward();
    EXPECT_EQ(first_of(net->first.grad()), 4.0F);
    EXPECT_EQ(collective.summed.size(), sums);
  });
}

TEST(DataParallelLife, TrainsAloneAsWithoutIt) {
  run_torch_ranks(1, [](Collective& /*unused*/) {
    const auto alone = make_alone_collective();
    Chain wrapped;
    Chain plain;
    DataParallel parallel(wrapped.ptr(), *alone);
    torch::optim::SGD wrapped_optimizer(wrapped->parameters(), 0.125);
    torch::optim::SGD plain_optimizer(plain->parameters(), 0.125);
    for (int i = 0; i < 4; ++i) {
      wrapped_optimizer.zero_grad(i % 2 == 0);
      plain_optimizer.zero_grad();
      parallel.forward(wrapped, torch::full({4}, i)).sum().backward();
      plain->forward(torch::full({4}, i)).sum().backward();
      wrapped_optimizer.step();
      plain_optimizer.step();
      EXPECT_TRUE(torch::equal(wrapped->first, plain->first));
    }
  });
}

// A gradient in a bucket has a storage over the collective's memory, which cannot grow.
TEST(DataParallelLife, LeavesGradientsWhereTheyAreUnlessAHookLooks) {
  run_torch_ranks(1, [](Collective& /*unused*/) {
    const auto alone = make_alone_collective();
    CountingCollective collective(*alone);
    Chain net;
    for (const bool hooked : {false, true}) {
      DataParallel parallel(net.ptr(), collective, {.gradient_as_bucket_view = true});
      EXPECT_EQ(collective.allocated_bytes, 0U);
      net->zero_grad();
      {
        const auto no_sync = parallel.no_sync();
        parallel.forward(net, torch::ones({4})).sum().backward();
      }
      if (hooked) {
        parallel.comm_hook([](Bucket& bucket, Collective&) { bucket.buffer().mul_(2); });
        EXPECT_GT(collective.allocated_bytes, 0U);
      }
      parallel.forward(net, torch::full({4}, 3.0)).sum().backward();
      EXPECT_EQ(first_of(net->first.grad()), hooked ? 8.0F : 4.0F);
      for (int pass = 0; pass < 2; ++pass) {
        net->zero_grad();
        parallel.forward(net, torch::full({4}, 3.0)).sum().backward();
        EXPECT_EQ(first_of(net->first.grad()), hooked ? 6.0F : 3.0F);
        EXPECT_EQ(net->first.grad().storage().resizable(), !hooked);
      }
    }
    EXPECT_TRUE(collective.summed.empty());
  });
}

TEST(DataParallelLife, LeavesASingleRankNoGraphOfItsGradients) {
  run_torch_ranks(1, [](Collective& /*unused*/) {
    const auto alone = make_alone_collective();
    Chain net;
    DataParallel parallel(net.ptr(), *alone);
    const auto loss = parallel.forward(net, torch::full({4}, 3.0)).sum();
    loss.backward({}, /*retain_graph=*/true, /*create_graph=*/true);
    EXPECT_FALSE(net->first.grad().requires_grad());
  });
}

}  // namespace
}  // namespace ddprun::worker
