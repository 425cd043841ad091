#include "worker/training/data_parallel/bucket_layout.h"

#include <ddprun/log_record.h>
#include <gtest/gtest.h>

#include <vector>

namespace ddprun::worker {
namespace {

using Order = std::vector<std::size_t>;

TEST(BucketLayout, WaitsForARebuildOnceAPassHasLearnedAnOrder) {
  BucketLayout layout({{0, 1, 2}});
  EXPECT_FALSE(layout.waits_for_rebuild());
  layout.begin_pass();
  layout.hook_ran(2);
  EXPECT_FALSE(layout.waits_for_rebuild());
  layout.became_ready(2);
  EXPECT_TRUE(layout.waits_for_rebuild());
  layout.set_rebuilt();
  EXPECT_FALSE(layout.waits_for_rebuild());
  EXPECT_TRUE(layout.rebuilt());
}

TEST(BucketLayout, PutsParametersLastThatDidNotBecomeReady) {
  BucketLayout layout({{0, 1, 2, 3}});
  layout.became_ready(3);
  layout.became_ready(1);
  EXPECT_EQ(layout.whole_order(4), (Order{3, 1, 0, 2}));
  EXPECT_EQ(layout.whole_order(4), (Order{3, 1, 0, 2}));
}

TEST(BucketLayout, ForgetsTheOrderOfAPassThatWasGivenUpOrBegunAgain) {
  BucketLayout layout({{0, 1}});
  layout.became_ready(1);
  layout.forget();
  EXPECT_FALSE(layout.waits_for_rebuild());
  layout.became_ready(0);
  layout.begin_pass();
  EXPECT_FALSE(layout.waits_for_rebuild());
}

TEST(BucketLayout, LearnsNothingOnceRebuilt) {
  BucketLayout layout({{0, 1}});
  layout.set_rebuilt();
  layout.became_ready(1);
  layout.all_ready(2);
  EXPECT_FALSE(layout.waits_for_rebuild());
}

TEST(BucketLayout, TakesTheOrderOfRegistrationWhereARankHasNoBatch) {
  BucketLayout layout({{0, 1, 2}});
  layout.became_ready(2);
  layout.all_ready(3);
  EXPECT_TRUE(layout.waits_for_rebuild());
  EXPECT_EQ(layout.whole_order(3), (Order{0, 1, 2}));
}

TEST(BucketLayout, KeepsTheHooksOfTheLatestPass) {
  BucketLayout layout({{0, 1}});
  layout.hook_ran(1);
  layout.hook_ran(1);
  EXPECT_EQ(layout.hook_order(), (Order{1, 1}));
  layout.set_rebuilt();
  layout.forget();
  EXPECT_EQ(layout.hook_order(), (Order{1, 1}));
  layout.begin_pass();
  EXPECT_TRUE(layout.hook_order().empty());
}

TEST(BucketLayout, RecordsTheFirstBucketsAndTheRebuiltOnes) {
  BucketLayout layout({{0, 1, 2}});
  const std::vector<ParameterSize> sizes{{.bytes = 4}, {.bytes = 8}, {.bytes = 16}};
  LogRecord record;
  layout.write(record, {{0, 1, 2}}, sizes);
  EXPECT_EQ(record.texts.at("bucket_sizes"), "28");
  EXPECT_EQ(record.texts.at("rebuilt_bucket_sizes"), "");
  EXPECT_EQ(record.numbers.at("has_rebuilt_buckets"), 0);
  layout.set_rebuilt();
  layout.hook_ran(2);
  layout.hook_ran(0);
  layout.write(record, {{2}, {1, 0}}, sizes);
  EXPECT_EQ(record.texts.at("bucket_sizes"), "28");
  EXPECT_EQ(record.texts.at("rebuilt_bucket_sizes"), "16, 12");
  EXPECT_EQ(record.texts.at("rebuilt_per_bucket_param_indices"), "2, 1 0");
  EXPECT_EQ(record.texts.at("prev_iteration_grad_ready_order_indices"), "2, 0");
  EXPECT_EQ(record.numbers.at("has_rebuilt_buckets"), 1);
}

}  // namespace
}  // namespace ddprun::worker
