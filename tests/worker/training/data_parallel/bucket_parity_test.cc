// The assignment of parameters to buckets beside PyTorch's own
// (torch/csrc/distributed/c10d/reducer.cpp).
#include <c10/util/hash.h>
#include <ddprun/data_parallel.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "tests/worker/torch_ranks.h"
#include "tests/worker/training/data_parallel/random_recipe.h"
#include "tests/worker/training/data_parallel/reference_backend.h"
#include "worker/training/data_parallel/bucket_plan.h"

namespace ddprun::worker {
namespace {

// A list of parameters, and limits for their buckets.
struct ParameterList {
  std::vector<at::Tensor> tensors;
  std::vector<bool> sparse;
  std::vector<std::size_t> limits;
  std::vector<ParameterSize> sizes;
};

ParameterList random_list(unsigned seed) {
  Dice dice(seed);
  ParameterList list;
  const std::vector<at::ScalarType> dtypes{at::kFloat,    at::kFloat, at::kDouble,
                                           at::kBFloat16, at::kHalf,  at::kComplexFloat};
  for (unsigned more = 1 + dice.roll(40); more > 0; --more) {
    // Small multiples of four elements: limits are reached exactly, too.
    const std::int64_t count = dice.one_in(8) ? 100 + dice.roll(400) : 4 * dice.roll(6);
    list.tensors.push_back(at::empty({count}, dice.any_of(dtypes)));
    list.sparse.push_back(dice.one_in(10));
    const at::Tensor& tensor = list.tensors.back();
    list.sizes.push_back({.bytes = tensor.nbytes(),
                          .kind = c10::get_hash(tensor.scalar_type(), tensor.device()),
                          .sparse = list.sparse.back()});
  }
  for (unsigned more = 1 + dice.roll(4); more > 0; --more) {
    list.limits.push_back(dice.one_in(6) ? std::numeric_limits<std::size_t>::max()
                                         : dice.any_of<std::size_t>({1, 16, 32, 64, 100, 1000}));
  }
  return list;
}

TEST(BucketParity, RandomListsAreAssignedAsByPyTorch) {
  run_torch_ranks(1, [](Collective& /*unused*/) {
    constexpr unsigned kLists = 200;
    std::size_t buckets = 0;
    for (unsigned seed = 1; seed <= kLists; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      const ParameterList list = random_list(seed);
      // As torch/nn/parallel/distributed.py does at the start.
      auto first = std::get<0>(
          c10d::compute_bucket_assignment_by_size(list.tensors, list.limits, list.sparse));
      std::reverse(first.begin(), first.end());
      EXPECT_EQ(plan_first_buckets(list.sizes, list.limits), first);
      // And as Reducer::rebuild_buckets, with the order of the hooks.
      std::vector<std::int64_t> order(list.tensors.size());
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), std::mt19937(seed));
      std::vector<at::Tensor> ordered;
      for (const std::int64_t index : order)
        ordered.push_back(list.tensors[static_cast<std::size_t>(index)]);
      const auto rebuilt = std::get<0>(
          c10d::compute_bucket_assignment_by_size(ordered, list.limits, list.sparse, order));
      EXPECT_EQ(plan_ready_buckets(list.sizes, std::vector<std::size_t>(order.begin(), order.end()),
                                   list.limits),
                rebuilt);
      buckets += first.size() + rebuilt.size();
    }
    EXPECT_GT(buckets, 10 * kLists) << "lists that fill few buckets tell nothing";
    std::printf("seeds 1 to %u: %zu buckets\n", kLists, buckets);
  });
}

struct ThreeLayersImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return third(second(first(x))); }
  torch::nn::Linear first{register_module("first", torch::nn::Linear(600, 600))};
  torch::nn::Linear second{register_module("second", torch::nn::Linear(600, 600))};
  torch::nn::Linear third{register_module("third", torch::nn::Linear(600, 10))};
};
TORCH_MODULE(ThreeLayers);

using Plan = std::vector<std::vector<std::size_t>>;

// The rebuilt buckets of both, with the default limits: 1 MiB and 25 MiB.
std::pair<Plan, Plan> rebuilt_buckets(Collective& collective) {
  ThreeLayers ours;
  ThreeLayers theirs;
  DataParallel parallel(ours.ptr(), collective);
  std::shared_ptr<c10d::Reducer> reference =
      make_reference(theirs->parameters(), collective,
                     {.bucket_cap_bytes = std::int64_t{25} << 20,
                      .first_bucket_bytes = std::int64_t{1} << 20,
                      .sparse = {}});
  c10d::Logger logger(reference);
  for (int pass = 0; pass < 2; ++pass) {
    parallel.forward(ours, torch::ones({1, 600})).sum().backward();
    reference->prepare_for_forward();
    reference->rebuild_buckets();
    const auto out = theirs(torch::ones({1, 600})).sum();
    reference->prepare_for_backward({});
    out.backward();
  }
  return {parallel.buckets(), logger.get_per_bucket_variable_indices()};
}

TEST(BucketParity, TheLastBucketIsSmallWhereTheVariableSaysSo) {
  for (const char* value : {"0", "1", "true"}) {
    run_torch_ranks(2, [value](Collective& collective) {
      ::setenv("DDP_SET_LAST_BUCKET_CAP", value, 1);
      const auto [ours, theirs] = rebuilt_buckets(collective);
      EXPECT_EQ(ours, theirs) << value;
      // 1,466,440 and 1,442,400 bytes; else the first weight alone is more than 1 MiB.
      const bool small_last = std::string(value) == "1";
      EXPECT_EQ(ours, small_last ? (Plan{{1, 2, 3, 4, 5}, {0}}) : (Plan{{5, 4, 3, 2}, {1, 0}}))
          << value;
    });
  }
}

}  // namespace
}  // namespace ddprun::worker
