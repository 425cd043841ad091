// Every way to miss a reduction either trains, with the same weights on all ranks. Or it throws on
// all of them before a second step. None is silent.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <string>

#include "tests/worker/silent_parting/ways.h"

namespace ddprun::worker {
namespace {

constexpr int kRanksMax = 4;

// The end of a rank, in memory that its test shares.
struct Seen {
  bool ended;
  bool threw;
  std::uint64_t weights;
  int steps;
  std::array<char, 1024> message;
};
using AllSeen = std::array<Seen, kRanksMax>;

// FNV-1a, 64 bits.
std::uint64_t hash_of(const std::vector<at::Tensor>& weights) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const at::Tensor& weight : weights) {
    const at::Tensor row = weight.detach().contiguous();
    const auto* bytes = static_cast<const unsigned char*>(row.const_data_ptr());
    for (std::size_t i = 0; i < row.nbytes(); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3U;
  }
  return hash;
}

void run_one(const Way& way, Collective& ranks, Seen& seen) {
  at::set_num_threads(1);
  Outcome outcome;
  try {
    way.run(ranks, outcome);
  } catch (const std::exception& error) {
    seen.threw = true;
    std::strncpy(seen.message.data(), error.what(), seen.message.size() - 1);
  }
  seen.weights = hash_of(outcome.weights);
  seen.steps = outcome.steps;
  seen.ended = true;
}

void expect_right(const Way& way, std::span<const Seen> ranks) {
  bool has_words = false;
  for (const Seen& seen : ranks) {
    const char* const message = seen.message.data();
    EXPECT_TRUE(seen.ended);
    EXPECT_EQ(seen.threw, way.words.has_value()) << message;
    if (way.words) {
      EXPECT_TRUE(seen.steps <= kAt + 1 || seen.weights == ranks.front().weights) << message;
      has_words = has_words || std::strstr(message, way.words->c_str()) != nullptr;
    } else {
      EXPECT_EQ(seen.weights, ranks.front().weights) << "the ranks have parted";
    }
  }
  EXPECT_EQ(has_words, way.words.has_value())
      << way.words.value_or("") << " not in: " << ranks.front().message.data();
}

void run_all(const std::vector<Way>& ways, int ranks) {
  auto* const memory =
      ::mmap(nullptr, sizeof(AllSeen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto& all = *new (memory) AllSeen;
  for (const Way& way : ways) {
    SCOPED_TRACE(way.name);
    all = {};
    run_ranks_to_end({.ranks = ranks}, [&](Collective& collective) {
      run_one(way, collective, all[static_cast<std::size_t>(collective.rank())]);
    });
    const std::span<const Seen> seen(all.data(), static_cast<std::size_t>(ranks));
    expect_right(way, seen);
    std::printf("%d ranks: %s: %s %s\n", ranks, way.name, seen[0].threw ? "throws:" : "equal",
                seen[0].message.data());
  }
  ::munmap(memory, sizeof(AllSeen));
}

class SilentParting : public ::testing::TestWithParam<int> {};

TEST_P(SilentParting, IsNoWayOfPasses) { run_all(ways_of_passes(), GetParam()); }
TEST_P(SilentParting, IsNoWayOfWeights) { run_all(ways_of_weights(), GetParam()); }
TEST_P(SilentParting, IsNoWayOfOneRank) { run_all(ways_of_ranks(), GetParam()); }
TEST_P(SilentParting, IsNoWayOfModes) { run_all(ways_of_modes(), GetParam()); }
TEST_P(SilentParting, IsNoWayOfOthers) { run_all(ways_of_others(), GetParam()); }
TEST_P(SilentParting, IsNoWayOfGraphs) { run_all(ways_of_graphs(), GetParam()); }
TEST_P(SilentParting, IsNoWayOfSettings) { run_all(ways_of_settings(), GetParam()); }

INSTANTIATE_TEST_SUITE_P(Ranks, SilentParting, ::testing::Values(2, 4));

}  // namespace
}  // namespace ddprun::worker
