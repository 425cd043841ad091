#include <ddprun/metrics.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <stdexcept>

#include "tests/worker/scripted_ranks.h"

namespace ddprun::worker {
namespace {

TEST(RequireSame, IsContentWhereAllAgree) {
  ScriptedRanks ranks(
      {blob_of(std::array{std::uint64_t{7}}), blob_of(std::array{std::uint64_t{7}})});
  EXPECT_NO_THROW(require_same(ranks, 7, "weights"));
}

TEST(RequireSame, NamesTheRankThatDiffers) {
  ScriptedRanks ranks(
      {blob_of(std::array{std::uint64_t{7}}), blob_of(std::array{std::uint64_t{8}})});
  try {
    require_same(ranks, 7, "weights after training");
    FAIL() << "no exception";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "weights after training: rank 2 differs from rank 0");
  }
}

}  // namespace
}  // namespace ddprun::worker
