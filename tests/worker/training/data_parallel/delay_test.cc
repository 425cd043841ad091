// Gradients that travel last, and buffers that the program makes alike, in forked ranks.
#include <ddprun/data_parallel.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <stdexcept>
#include <vector>

#include "tests/worker/torch_ranks.h"
#include "tests/worker/training/data_parallel/counting_collective.h"

namespace ddprun::worker {
namespace {

using Buckets = std::vector<std::vector<std::size_t>>;

TEST(DelayedParameters, TravelLastInOneBucketThatNoLimitCloses) {
  run_torch_ranks(2, [](Collective& inner) {
    CountingCollective collective(inner);
    Chain net;
    DataParallel parallel(
        net.ptr(), collective,
        {.bucket_cap_bytes = 1, .first_bucket_bytes = 1, .delay_all_reduce = {"rare", "second"}});
    EXPECT_EQ(parallel.buckets(), (Buckets{{0}, {1, 2}}));
    for (int pass = 0; pass < 3; ++pass) {
      net->zero_grad();
      const auto x = torch::full({4}, collective.rank() == 0 ? 2.0 : 6.0);
      parallel.forward(net, x).sum().backward();
      for (const at::Tensor& parameter : net->parameters())
        EXPECT_TRUE(torch::equal(parameter.grad(), torch::full({4}, 4.0)));
    }
    // In the order of the gradients, which come backwards: rare, then second.
    EXPECT_EQ(parallel.buckets(), (Buckets{{0}, {2, 1}}));
    ASSERT_EQ(collective.summed.size(), 6U);
    for (std::size_t pass = 0; pass < 3; ++pass) {
      EXPECT_EQ(collective.summed[2 * pass].count, 4U);
      EXPECT_EQ(collective.summed[2 * pass + 1].count, 8U);
    }
  });
}

TEST(DelayedParameters, MayBeUnused) {
  run_torch_ranks(2, [](Collective& collective) {
    Chain net;
    DataParallel parallel(net.ptr(), collective,
                          {.find_unused_parameters = true, .delay_all_reduce = {"rare"}});
    for (int pass = 0; pass < 3; ++pass) {
      net->zero_grad();
      // Rank 1 never uses it, rank 0 in the second pass only.
      const bool with_rare = pass == 1 && collective.rank() == 0;
      parallel.forward(net, torch::full({4}, 2.0), with_rare).sum().backward();
      EXPECT_EQ(net->rare.grad().defined(), pass == 1);
      if (pass == 1) {
        EXPECT_EQ(first_of(net->rare.grad()), 1.0F);
      }
    }
  });
}

TEST(DelayedParameters, MustBeParametersThatNeedAGradient) {
  run_torch_ranks(1, [](Collective& /*unused*/) {
    const auto alone = make_alone_collective();
    Chain net;
    net->rare.requires_grad_(false);
    for (const char* name : {"rare", "none"}) {
      try {
        const DataParallel parallel(net.ptr(), *alone, {.delay_all_reduce = {name}});
        ADD_FAILURE() << name;
      } catch (const std::invalid_argument& error) {
        EXPECT_EQ(error.what(), std::string("delay_all_reduce: '") + name +
                                    "' is no parameter of the model that needs a gradient");
      }
    }
  });
}

// Sums the running means over all ranks, and leaves the rest alone.
void sum_means(std::vector<NamedTensor>& buffers, Collective& collective) {
  for (const NamedTensor& buffer : buffers) {
    if (!buffer.name.ends_with("running_mean")) continue;
    const at::Tensor row = buffer.tensor;
    const auto all = collective.all_gather_bytes(
        std::as_bytes(std::span(row.data_ptr<float>(), static_cast<std::size_t>(row.numel()))));
    row.zero_();
    for (const auto& bytes : all)
      row.add_(torch::from_blob(const_cast<std::byte*>(bytes.data()), row.sizes()));  // NOLINT
  }
}

TEST(BufferHooks, RunAtTheirMomentInsteadOfTheCopy) {
  for (const auto moment : {BufferMoment::kBeforeForward, BufferMoment::kAfterForward}) {
    run_torch_ranks(2, [moment](Collective& inner) {
      CountingCollective collective(inner);
      torch::nn::Sequential net(torch::nn::BatchNorm1d(2));
      DataParallel parallel(net.ptr(), collective);
      int calls = 0;
      parallel.buffer_hook(
          [&calls](std::vector<NamedTensor>& buffers, Collective& ours) {
            ++calls;
            sum_means(buffers, ours);
          },
          moment);
      const int broadcasts = collective.broadcasts;
      const at::Tensor mean = net->named_buffers()["0.running_mean"];
      mean.fill_(collective.rank() + 1);
      const bool before = moment == BufferMoment::kBeforeForward;
      parallel.before_forward();
      EXPECT_EQ(calls, before ? 1 : 0);
      EXPECT_EQ(first_of(mean), before ? 3.0F : static_cast<float>(collective.rank() + 1));
      parallel.after_forward();
      EXPECT_EQ(calls, 1);
      EXPECT_EQ(first_of(mean), 3.0F);
      EXPECT_EQ(collective.broadcasts, broadcasts);
      EXPECT_THROW(parallel.buffer_hook(sum_means), std::runtime_error);
    });
  }
}

TEST(BufferHooks, FollowTheRulesOfTheCopy) {
  run_torch_ranks(2, [](Collective& collective) {
    torch::nn::Sequential net(torch::nn::BatchNorm1d(2));
    DataParallel parallel(net.ptr(), collective);
    int calls = 0;
    parallel.buffer_hook([&calls](std::vector<NamedTensor>&, Collective&) { ++calls; });
    const auto forward = [&] { return parallel.forward(net, torch::randn({8, 2})); };
    forward().sum().backward();
    EXPECT_EQ(calls, 1);
    {
      const torch::NoGradGuard evaluation;  // once more, then no more
      forward();
      forward();
    }
    EXPECT_EQ(calls, 2);
    forward();
    EXPECT_EQ(calls, 2) << "the forward before did not synchronise";
  });
}

}  // namespace
}  // namespace ddprun::worker
