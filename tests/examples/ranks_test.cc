#include "examples/mnist/ranks.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ddprun::examples {
namespace {

using Blob = std::vector<std::byte>;

template <typename T, std::size_t kCount>
Blob blob_of(const std::array<T, kCount>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

// Rank 0 among peers whose answers are given.
class ScriptedRanks final : public worker::Collective {
 public:
  explicit ScriptedRanks(std::vector<Blob> peers) : peers_(std::move(peers)) {}

  int rank() const override { return 0; }
  int world_size() const override { return static_cast<int>(peers_.size()) + 1; }
  worker::Device device() const override { return worker::Device::kCpu; }
  std::string_view name() const override { return "scripted"; }
  std::shared_ptr<std::byte> allocate(std::size_t /*bytes*/) override { return nullptr; }
  worker::Ticket launch_sum(worker::Flat /*flat*/) override { return 0; }
  void progress() override {}
  void wait(worker::Ticket /*ticket*/) override {}
  void broadcast(worker::Flat /*flat*/, int /*root*/) override {}
  void barrier() override {}
  void reset() override {}
  std::vector<Blob> all_gather(std::span<const std::byte> mine) override {
    std::vector<Blob> all{{mine.begin(), mine.end()}};
    all.insert(all.end(), peers_.begin(), peers_.end());
    return all;
  }

 private:
  std::vector<Blob> peers_;
};

TEST(MeanOverRanks, WeighsSamplesAndNotRanks) {
  ScriptedRanks ranks({blob_of(std::array{0.0, 1.0})});  // the other rank: one sample, wrong
  Tally mine;
  mine.add(1.0, 3);  // three samples here, all right
  EXPECT_EQ(mean_over_ranks(ranks, mine), 0.75) << "the mean of the means would be 0.5";
}

TEST(MeanOverRanks, GivesARankWithoutSamplesNoWeight) {
  ScriptedRanks ranks({blob_of(std::array{6.0, 4.0})});
  EXPECT_EQ(mean_over_ranks(ranks, {}), 1.5);
}

TEST(MeanOverRanks, IsNoNumberWithoutAnySample) {
  ScriptedRanks ranks({blob_of(std::array{0.0, 0.0})});
  EXPECT_TRUE(std::isnan(mean_over_ranks(ranks, {})));
}

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
}  // namespace ddprun::examples
