#include "worker/training/data_parallel/bucket_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace ddprun::worker {
namespace {

std::vector<std::size_t> launchable(BucketQueue& queue) {
  std::vector<std::size_t> buckets;
  for (auto next = queue.next_to_launch(); next != BucketQueue::kNone;
       next = queue.next_to_launch()) {
    buckets.push_back(next);
  }
  return buckets;
}

TEST(BucketQueue, HoldsAReadyBucketUntilAllEarlierOnesAreReady) {
  BucketQueue queue({{0}, {1}, {2}});
  queue.gradient_ready(2);
  EXPECT_TRUE(launchable(queue).empty());
  queue.gradient_ready(0);
  EXPECT_EQ(launchable(queue), (std::vector<std::size_t>{0}));
  queue.gradient_ready(1);
  EXPECT_EQ(launchable(queue), (std::vector<std::size_t>{1, 2}));
  EXPECT_TRUE(queue.all_launched());
}

TEST(BucketQueue, NeedsEveryGradientOfABucket) {
  BucketQueue queue({{3, 1}, {0, 2}});
  queue.gradient_ready(3);
  EXPECT_TRUE(launchable(queue).empty());
  EXPECT_EQ(queue.missing(), (std::vector<std::size_t>{0, 1, 2}));
  queue.gradient_ready(1);
  EXPECT_EQ(launchable(queue), (std::vector<std::size_t>{0}));
  EXPECT_FALSE(queue.all_launched());
}

TEST(BucketQueue, ReportsASecondGradientAndCountsItOnce) {
  BucketQueue queue({{0, 1}});
  EXPECT_EQ(queue.gradient_ready(0), BucketQueue::Mark::kFirst);
  EXPECT_EQ(queue.gradient_ready(0), BucketQueue::Mark::kAgain);
  EXPECT_TRUE(launchable(queue).empty());
}

TEST(BucketQueue, AwaitsEverythingAgainAfterRearming) {
  BucketQueue queue({{0}, {1}});
  queue.gradient_ready(0);
  queue.gradient_ready(1);
  EXPECT_EQ(launchable(queue).size(), 2U);
  queue.rearm();
  EXPECT_FALSE(queue.all_launched());
  EXPECT_EQ(queue.missing(), (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(queue.gradient_ready(1), BucketQueue::Mark::kFirst);
  EXPECT_TRUE(launchable(queue).empty());
}

TEST(BucketQueue, LaunchesEveryBucketOnceAndInOrderWhateverTheArrivals) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    BucketQueue queue({{4, 2}, {7}, {1, 0, 3}, {6, 5}});
    std::vector<std::size_t> arrivals{0, 1, 2, 3, 4, 5, 6, 7};
    std::ranges::shuffle(arrivals, random);
    std::vector<std::size_t> launched;
    for (const std::size_t parameter : arrivals) {
      queue.gradient_ready(parameter);
      for (const std::size_t bucket : launchable(queue)) launched.push_back(bucket);
    }
    EXPECT_EQ(launched, (std::vector<std::size_t>{0, 1, 2, 3}));
  }
}

}  // namespace
}  // namespace ddprun::worker
