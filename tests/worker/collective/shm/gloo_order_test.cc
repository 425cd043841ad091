// Sums of three ranks and more against those that Gloo gave, bit for bit. They were recorded from
// PyTorch by record_gloo_sums.py, which says how the elements are made.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/worker/forked_ranks.h"
#include "worker/collective/shm/shm_collective.h"

namespace ddprun::worker {
namespace {

struct Recorded {
  int ranks = 0;
  std::size_t count = 0;  // elements
  std::uint64_t fingerprint = 0;
};

std::vector<Recorded> recorded_from_gloo(int ranks) {
  std::ifstream file(DDPRUN_GLOO_SUMS);
  EXPECT_TRUE(file) << DDPRUN_GLOO_SUMS;
  std::vector<Recorded> all;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream in(line);
    Recorded recorded;
    std::string bar;
    in >> recorded.ranks >> recorded.count >> bar >> recorded.fingerprint;
    EXPECT_TRUE(in && bar == "|") << line;
    if (recorded.ranks == ranks) all.push_back(recorded);
  }
  return all;
}

float element(std::size_t rank, std::size_t i) {
  return static_cast<float>((i * 2654435761U + rank * 40503U) % 100'003U) / 7.0F;
}

// FNV-1a over the words' bits.
std::uint64_t fingerprint(const float* sums, std::size_t count) {
  std::uint64_t value = 0xCBF29CE484222325U;
  for (std::size_t i = 0; i < count; ++i) {
    value = (value ^ std::bit_cast<std::uint32_t>(sums[i])) * 0x100000001B3U;
  }
  return value;
}

class GlooOrder : public ::testing::TestWithParam<int> {};

TEST_P(GlooOrder, GivesGloosBits) {
  const auto cases = recorded_from_gloo(GetParam());
  ASSERT_GT(cases.size(), 10U);
  run_ranks(GetParam(), [&cases](Collective& collective) {
    for (const Recorded& recorded : cases) {
      const auto memory = collective.allocate(recorded.count * sizeof(float));
      auto* data = reinterpret_cast<float*>(memory.get());
      for (std::size_t i = 0; i < recorded.count; ++i) {
        data[i] = element(static_cast<std::size_t>(collective.rank()), i);
      }
      collective.wait(collective.launch_sum({data, recorded.count, Dtype::kFloat32}));
      EXPECT_EQ(fingerprint(data, recorded.count), recorded.fingerprint) << recorded.count;
    }
  });
}

// Else the vectors could not tell one order from another.
TEST_P(GlooOrder, IsNotTheOrderOfTheRanks) {
  const auto ranks = static_cast<std::size_t>(GetParam());
  for (const Recorded& recorded : recorded_from_gloo(GetParam())) {
    if (recorded.count < 1000) continue;
    std::vector<float> sums(recorded.count);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      for (std::size_t rank = 0; rank < ranks; ++rank) sums[i] += element(rank, i);
    }
    EXPECT_NE(fingerprint(sums.data(), sums.size()), recorded.fingerprint) << recorded.count;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, GlooOrder, ::testing::Values(3, 4));

}  // namespace
}  // namespace ddprun::worker
