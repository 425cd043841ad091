// Words of stages to each other, before they begin and with their first activation.
#include "worker/training/pipeline/pipeline_terms.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "worker/training/pipeline/activation_shape.h"

namespace ddprun::worker {
namespace {

const PipelineTerms kTerms{.micro_batches = 4};

template <typename Error>
std::string message(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(PipelineTerms, EqualOnesAreTaken) {
  EXPECT_EQ(why_unequal(std::vector{kTerms, kTerms}), std::nullopt);
  auto with_loss = kTerms;
  with_loss.has_loss = true;  // the last rank alone
  EXPECT_EQ(why_unequal(std::vector{kTerms, with_loss}), std::nullopt);
}

TEST(PipelineTerms, UnequalOnesAreNamedWithTheirRank) {
  auto other = kTerms;
  other.micro_batches = 8;
  EXPECT_EQ(why_unequal(std::vector{kTerms, kTerms, other}),
            "Pipeline: micro_batches 8 given on rank 2, expected 4 as on rank 0");
  other = kTerms;
  other.order = PipelineOrder::kOneForwardOneBackward;
  EXPECT_EQ(why_unequal(std::vector{kTerms, other}),
            "Pipeline: schedule 1f1b given on rank 1, expected gpipe as on rank 0");
  other = kTerms;
  other.mean_loss = false;
  EXPECT_EQ(why_unequal(std::vector{other, kTerms}),
            "Pipeline: mean_loss true given on rank 1, expected false as on rank 0");
}

TEST(PipelineTerms, MicroBatchesBelowOneAreRefused) {
  EXPECT_EQ(why_unequal(std::vector{PipelineTerms{}}),
            "Pipeline: micro_batches 0 given on rank 0, expected 1 or more");
}

TEST(PipelineTerms, ForwardsThatMayNotRunAheadAreRefused) {
  auto other = kTerms;
  other.runs_ahead = false;
  EXPECT_EQ(why_unequal(std::vector{kTerms, other}),
            "Pipeline: a DataParallel with find_unused_parameters, static_graph or "
            "step_in_backward() given on rank 1, expected one without them");
}

TEST(PipelineTerms, ComeBackFromTheirWords) {
  const PipelineTerms sent{.micro_batches = 7,
                           .order = PipelineOrder::kOneForwardOneBackward,
                           .mean_loss = false,
                           .has_loss = true,
                           .runs_ahead = false};
  const auto told = terms_of(words_of(sent));
  ASSERT_TRUE(told);
  EXPECT_EQ(told->micro_batches, 7);
  EXPECT_EQ(told->order, PipelineOrder::kOneForwardOneBackward);
  EXPECT_FALSE(told->mean_loss);
  EXPECT_TRUE(told->has_loss);
  EXPECT_FALSE(told->runs_ahead);
  EXPECT_TRUE(terms_of(words_of(kTerms))->runs_ahead);
}

TEST(PipelineTerms, OtherWordsAreRefused) {
  const std::vector<std::pair<std::size_t, std::int64_t>> bad{{0, 0}, {2, 2}, {2, -1},
                                                              {3, 2}, {4, 7}, {5, -1}};
  for (const auto& [place, word] : bad) {
    PipelineWords words = words_of(kTerms);
    words.at(place) = word;
    EXPECT_FALSE(terms_of(words)) << place << ", " << word;
  }
}

TEST(PipelineTerms, TheMicroBatchesDivideTheRows) {
  EXPECT_EQ(rows_of_micro_batch(12, 4, "inputs"), 3);
  EXPECT_EQ(message<std::invalid_argument>([] { rows_of_micro_batch(10, 4, "inputs"); }),
            "Pipeline: inputs of 10 rows given, expected a multiple of the 4 micro-batches");
  EXPECT_NE(message<std::invalid_argument>([] { rows_of_micro_batch(0, 4, "targets"); }),
            "no error");
}

TEST(ActivationShape, ComesBackFromItsWords) {
  for (const ActivationShape& shape :
       {ActivationShape{Dtype::kBFloat16, true, {4, 16, 32}},
        ActivationShape{Dtype::kInt64, false, {}},
        ActivationShape{Dtype::kFloat32, true, {1, 2, 3, 4, 5, 6, 7, 8}},
        ActivationShape{Dtype::kFloat32, true, {0, 5}}})
    EXPECT_EQ(from_words(to_words(shape)), shape) << text_of(shape);
}

TEST(ActivationShape, HasLimits) {
  const std::int64_t large = std::numeric_limits<std::int64_t>::max() / 2;
  EXPECT_EQ(message<std::invalid_argument>([&] {
              to_words({.sizes = {large, large}});
            }).substr(0, 40),
            "Pipeline: activations (46116860184273879");
  EXPECT_NE(message<std::invalid_argument>([] {
              to_words({.sizes = {1, 1, 1, 1, 1, 1, 1, 1, 1}});
            }),
            "no error");
  EXPECT_EQ(message<std::invalid_argument>([] { to_words({.sizes = {kActivationBytesMax / 4}}); }),
            "no error");
  EXPECT_NE(
      message<std::invalid_argument>([] { to_words({.sizes = {kActivationBytesMax / 4 + 1}}); }),
      "no error");
}

TEST(ActivationShape, OtherWordsAreRefused) {
  const ActivationWords good = to_words({.sizes = {2, 3}});
  const std::vector<std::pair<std::size_t, std::int64_t>> bad{
      {0, 0}, {1, -1}, {1, 8}, {2, 2}, {3, -1}, {3, 9}, {4, -1}, {4, kActivationBytesMax}};
  for (const auto& [place, word] : bad) {
    ActivationWords words = good;
    words.at(place) = word;
    EXPECT_EQ(message<CollectiveError>([&] { from_words(words); }),
              "Pipeline: the stage before sent something else than its activations")
        << place << ", " << word;
  }
}

}  // namespace
}  // namespace ddprun::worker
