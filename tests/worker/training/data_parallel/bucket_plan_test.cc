#include "worker/training/data_parallel/bucket_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace ddprun::worker {
namespace {

constexpr int kFloat = 6;
constexpr int kDouble = 7;

std::vector<ParameterSize> floats(const std::vector<std::size_t>& bytes) {
  std::vector<ParameterSize> parameters;
  for (const std::size_t size : bytes) parameters.push_back({size, kFloat});
  return parameters;
}

std::vector<std::size_t> backwards(std::size_t count) {
  std::vector<std::size_t> order(count);
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  return order;
}

TEST(BucketPlan, PutsAllParametersOfOneDtypeIntoOneFirstBucketInRegistrationOrder) {
  EXPECT_EQ(plan_first_buckets(floats({4, 400'000'000, 8})), (BucketPlan{{0, 1, 2}}));
}

TEST(BucketPlan, ReversesTheListOfFirstBucketsButNotWhatIsInside) {
  const std::vector<ParameterSize> parameters{{4, kFloat}, {8, kDouble}, {4, kFloat}, {8, kDouble}};
  EXPECT_EQ(plan_first_buckets(parameters), (BucketPlan{{1, 3}, {0, 2}}));
}

// Linear 600x600, 600x600, 600x10: the example checked against PyTorch 2.11.
TEST(BucketPlan, RebuildsAsPyTorchDoes) {
  const auto parameters = floats({1'440'000, 2400, 1'440'000, 2400, 24'000, 40});
  const std::size_t limits[] = {std::size_t{1} << 20, std::size_t{25} << 20};
  EXPECT_EQ(plan_ready_buckets(parameters, backwards(6), limits),
            (BucketPlan{{5, 4, 3, 2}, {1, 0}}));
}

TEST(BucketPlan, ClosesABucketAfterTheParameterThatPassesItsLimit) {
  const std::size_t limits[] = {100};
  EXPECT_EQ(plan_ready_buckets(floats({60, 60, 100, 99, 1}), backwards(5), limits),
            (BucketPlan{{4, 3}, {2}, {1, 0}}));
}

TEST(BucketPlan, RepeatsTheLastLimitAndKeepsItsOwnCountForEachKind) {
  const std::vector<ParameterSize> parameters{{10, kFloat}, {10, kDouble}, {10, kFloat},
                                              {10, kFloat}, {10, kDouble}, {10, kFloat}};
  std::vector<std::size_t> order(6);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const std::size_t limits[] = {10, 20};
  // Floats: {0}, {2,3}, then 5 stays open; doubles: {1}, then 4 stays open.
  EXPECT_EQ(plan_ready_buckets(parameters, order, limits),
            (BucketPlan{{0}, {1}, {2, 3}, {4}, {5}}));
}

TEST(BucketPlan, GivesASparseParameterABucketOfItsOwnWithoutMemory) {
  std::vector<ParameterSize> parameters = floats({100, 40, 12, 60});
  parameters[1].sparse = true;
  const std::size_t limits[] = {1000};
  const BucketPlan plan = plan_ready_buckets(parameters, backwards(4), limits);
  EXPECT_EQ(plan, (BucketPlan{{1}, {3, 2, 0}}));
  EXPECT_EQ(lay_out(parameters, plan).offsets, (std::vector<std::size_t>{0, 0}));
  EXPECT_EQ(layout_bytes_max(parameters), 3U * kBucketAlignBytes);
}

TEST(BucketPlan, PutsDelayedParametersIntoOneBucketPerKindAtTheEnd) {
  std::vector<ParameterSize> parameters = floats({100, 100, 100, 100, 8});
  for (const std::size_t delayed : {1, 3, 4}) parameters[delayed].delayed = true;
  parameters[4].kind = kDouble;
  const std::size_t limits[] = {100};
  EXPECT_EQ(plan_first_buckets(parameters, limits), (BucketPlan{{2}, {0}, {4}, {1, 3}}));
  const BucketPlan plan = plan_ready_buckets(parameters, backwards(5), limits);
  ASSERT_EQ(plan.size(), 4U);
  EXPECT_EQ(BucketPlan(plan.begin(), plan.begin() + 2), (BucketPlan{{2}, {0}}));
  EXPECT_TRUE(std::ranges::count(plan, std::vector<std::size_t>{4}) == 1);
  EXPECT_TRUE(std::ranges::count(plan, std::vector<std::size_t>{3, 1}) == 1);
}

TEST(BucketPlan, FillsTheFirstBucketsUpToTheirLimitsWhereThereAreSome) {
  const std::size_t limits[] = {20, 50};
  EXPECT_EQ(plan_first_buckets(floats({10, 10, 30, 30, 10}), limits),
            (BucketPlan{{4}, {2, 3}, {0, 1}}));
}

TEST(BucketPlan, GivesAParameterAboveTheCapNoBucketOfItsOwnUnlessTheOpenOneIsEmpty) {
  const std::size_t limits[] = {100};
  EXPECT_EQ(plan_ready_buckets(floats({500, 10}), backwards(2), limits), (BucketPlan{{1, 0}}));
  EXPECT_EQ(plan_ready_buckets(floats({10, 500}), backwards(2), limits), (BucketPlan{{1}, {0}}));
}

TEST(BucketPlan, CountsItsLimitsFromTheLastBucketBackwards) {
  const std::size_t limits[] = {10, 100};
  std::vector<ParameterSize> parameters = floats({60, 60, 5, 5, 8});
  EXPECT_EQ(plan_ready_buckets_backwards(parameters, backwards(5), limits),
            (BucketPlan{{1, 2, 3, 4}, {0}}));
  std::vector<std::size_t> order(5);
  std::iota(order.begin(), order.end(), std::size_t{0});
  EXPECT_EQ(plan_ready_buckets_backwards(parameters, order, limits),
            (BucketPlan{{2, 1, 0}, {4, 3}}));
  parameters[1].delayed = true;
  EXPECT_EQ(plan_ready_buckets_backwards(parameters, order, limits),
            (BucketPlan{{2, 0}, {4, 3}, {1}}));
}

TEST(BucketPlan, LaysBucketsOutAlignedAndWithoutGapsInside) {
  const auto parameters = floats({100, 4, 12});
  const BucketOffsets layout = lay_out(parameters, {{2, 1}, {0}});
  EXPECT_EQ(layout.offsets, (std::vector<std::size_t>{0, 128}));
  EXPECT_EQ(layout.total_bytes, 256U);
}

TEST(BucketPlan, EveryPlanFitsTheLargestLayout) {
  const auto parameters = floats({4, 132, 256, 1});
  const std::size_t limits[] = {1};
  const BucketPlan one_each = plan_ready_buckets(parameters, backwards(4), limits);
  EXPECT_EQ(one_each.size(), 4U);
  EXPECT_LE(lay_out(parameters, one_each).total_bytes, layout_bytes_max(parameters));
  EXPECT_LE(lay_out(parameters, plan_first_buckets(parameters)).total_bytes,
            layout_bytes_max(parameters));
}

TEST(BucketPlan, SurvivesTheWayToOtherRanks) {
  const BucketPlan plan{{5, 4, 3, 2}, {1, 0}};
  EXPECT_EQ(from_numbers(to_numbers(plan), 6), plan);
}

TEST(BucketPlan, RefusesNumbersThatAreNoPlanOfTheseParameters) {
  const std::vector<std::vector<std::int32_t>> bad{
      {},               // nothing
      {1},              // a bucket announced, none there
      {1, 2, 0},        // a bucket cut short
      {1, 2, 0, 0},     // an index twice
      {1, 2, 0, 2},     // an index too large
      {1, 2, 0, -1},    // a negative index
      {1, 1, 0},        // an index missing
      {2, 2, 0, 1},     // fewer buckets than announced
      {2, 2, 0, 1, 0},  // an empty bucket
  };
  for (const auto& numbers : bad) EXPECT_TRUE(from_numbers(numbers, 2).empty());
}

TEST(BucketPlan, KnowsWhichParametersMayShareABucket) {
  const std::vector<ParameterSize> sizes{{8, 1}, {8, 1}, {8, 2}, {8, 1, true}, {8, 1, true}};
  EXPECT_TRUE(may_share_buckets(sizes, {{1, 0}, {2}, {3}, {4}}));
  EXPECT_FALSE(may_share_buckets(sizes, {{1, 0, 2}, {3}, {4}})) << "two kinds";
  EXPECT_FALSE(may_share_buckets(sizes, {{1}, {0, 3}, {2}, {4}})) << "dense and sparse";
  EXPECT_FALSE(may_share_buckets(sizes, {{1, 0}, {2}, {3, 4}})) << "two sparse ones";
}

// Kinds are hashes of type and device. Each device has memory of its own.
TEST(BucketPlan, HoldsParametersOfOneDeviceInABucket) {
  struct Case {
    std::vector<std::size_t> devices;  // by parameter, each of 64 bytes
    std::vector<std::size_t> limits;
    BucketPlan first;
    BucketPlan ready;  // in the reverse order
    std::vector<std::size_t> offsets;
  };
  const std::vector<Case> cases{
      {{0, 0, 1, 1}, {1000}, {{2, 3}, {0, 1}}, {{3, 2}, {1, 0}}, {0, 0}},
      {{0, 1, 0, 1}, {128}, {{1, 3}, {0, 2}}, {{3, 1}, {2, 0}}, {0, 0}},
      {{1, 0, 1}, {64}, {{2}, {1}, {0}}, {{2}, {1}, {0}}, {0, 0, 128}},
      {{0, 0, 0, 1}, {64, 128}, {{3}, {1, 2}, {0}}, {{3}, {2}, {1, 0}}, {0, 0, 128}}};
  for (const Case& one : cases) {
    std::vector<ParameterSize> parameters;
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < one.devices.size(); ++i) {
      parameters.push_back({.bytes = 64, .kind = 7 + one.devices[i], .device = one.devices[i]});
      order.insert(order.begin(), i);
    }
    EXPECT_EQ(plan_first_buckets(parameters, one.limits), one.first);
    const BucketPlan ready = plan_ready_buckets(parameters, order, one.limits);
    // Those that are still open at the end come in the order of a hash table.
    EXPECT_TRUE(std::ranges::is_permutation(ready, one.ready));
    EXPECT_TRUE(may_share_buckets(parameters, ready));
    EXPECT_EQ(lay_out(parameters, one.first).offsets, one.offsets);
    for (const std::size_t device : {0U, 1U}) {
      const auto count = static_cast<std::size_t>(std::ranges::count(one.devices, device));
      EXPECT_EQ(layout_bytes_max(parameters, device), count * kBucketAlignBytes);
    }
  }
}

}  // namespace
}  // namespace ddprun::worker
