#include <ddprun/sampler.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <ios>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace ddprun::worker {
namespace {

using Indices = std::vector<std::size_t>;
using Lists = std::vector<Indices>;  // one a rank

// A case as recorded from torch by record_sampler_vectors.py.
struct Recorded {
  std::size_t sample_count = 0;
  int replicas = 0;
  SamplerOptions options;
  std::uint64_t epoch = 0;
  std::uint64_t fingerprint = 0;
  Lists lists;  // empty for large cases
};

Recorded parse(const std::string& line) {
  Recorded recorded;
  std::istringstream in(line);
  std::string bar;
  in >> recorded.sample_count >> recorded.replicas >> recorded.options.drop_last >>
      recorded.options.shuffle >> recorded.options.seed >> recorded.epoch >> bar >>
      recorded.fingerprint;
  EXPECT_TRUE(in && bar == "|") << line;
  Indices list;
  for (std::string word; in >> word;) {
    if (word == ";") {
      recorded.lists.push_back(list);
      list.clear();
    } else {
      list.push_back(std::stoul(word));
    }
  }
  return recorded;
}

std::vector<Recorded> recorded_from_torch() {
  std::ifstream file(DDPRUN_SAMPLER_VECTORS);
  EXPECT_TRUE(file) << DDPRUN_SAMPLER_VECTORS;
  std::vector<Recorded> all;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with('#')) all.push_back(parse(line));
  }
  return all;
}

std::uint64_t fold(std::uint64_t value, std::uint64_t word) {
  return (value ^ word) * 0x100000001B3U;
}

std::uint64_t fingerprint(const Lists& lists) {
  std::uint64_t value = 0xCBF29CE484222325U;
  for (const Indices& list : lists) {
    value = fold(value, list.size());
    for (const std::size_t index : list) value = fold(value, index);
  }
  return value;
}

Lists deal(std::size_t sample_count, int replicas, SamplerOptions options, std::uint64_t epoch) {
  Lists lists;
  for (int rank = 0; rank < replicas; ++rank) {
    DistributedSampler sampler(sample_count, replicas, rank, options);
    sampler.set_epoch(epoch);
    lists.push_back(sampler.indices());
    EXPECT_EQ(lists.back().size(), sampler.size());
  }
  return lists;
}

TEST(DistributedSampler, DealsWhatPyTorchDeals) {
  const std::vector<Recorded> cases = recorded_from_torch();
  ASSERT_EQ(cases.size(), 1020U);
  for (const Recorded& recorded : cases) {
    SCOPED_TRACE(testing::Message()
                 << "n=" << recorded.sample_count << " replicas=" << recorded.replicas
                 << " drop_last=" << recorded.options.drop_last
                 << " shuffle=" << recorded.options.shuffle << " seed=" << recorded.options.seed
                 << " epoch=" << recorded.epoch);
    const Lists lists =
        deal(recorded.sample_count, recorded.replicas, recorded.options, recorded.epoch);
    EXPECT_EQ(fingerprint(lists), recorded.fingerprint);
    if (!recorded.lists.empty()) {
      EXPECT_EQ(lists, recorded.lists);
    }
  }
}

TEST(DistributedSampler, RepeatsTheKnownPermutations) {
  EXPECT_EQ(deal(10, 1, {.seed = 0}, 0), (Lists{{4, 1, 7, 5, 3, 9, 0, 8, 6, 2}}));
  EXPECT_EQ(deal(24, 2, {.seed = 5}, 0), (Lists{{11, 13, 10, 16, 3, 17, 23, 22, 5, 1, 15, 4},
                                                {8, 6, 0, 19, 2, 12, 20, 21, 14, 18, 9, 7}}));
}

TEST(DistributedSampler, HasTheOrderOfEpochZeroUntilTold) {
  DistributedSampler sampler(100, 2, 1, {.seed = 3});
  const Indices first = sampler.indices();
  EXPECT_EQ(sampler.indices(), first);
  sampler.set_epoch(1);
  EXPECT_NE(sampler.indices(), first);
  sampler.set_epoch(0);
  EXPECT_EQ(sampler.indices(), first);
}

TEST(DistributedSampler, CoversEverySampleOnceBeforeThePadding) {
  for (const std::size_t sample_count : {0U, 1U, 2U, 7U, 24U, 1000U}) {
    for (int replicas = 1; replicas <= 5; ++replicas) {
      Indices seen;
      for (int rank = 0; rank < replicas; ++rank) {
        const DistributedSampler sampler(sample_count, replicas, rank, {.seed = 9});
        Indices mine = sampler.indices();
        mine.resize(sampler.unpadded_size());
        seen.insert(seen.end(), mine.begin(), mine.end());
      }
      std::sort(seen.begin(), seen.end());
      Indices all(sample_count);
      for (std::size_t i = 0; i < sample_count; ++i) all[i] = i;
      EXPECT_EQ(seen, all) << sample_count << " samples, " << replicas << " replicas";
    }
  }
}

TEST(DistributedSampler, HasNoPaddingWithDropLast) {
  for (int rank = 0; rank < 4; ++rank) {
    const DistributedSampler sampler(1003, 4, rank, {.drop_last = true});
    EXPECT_EQ(sampler.size(), 250U);
    EXPECT_EQ(sampler.unpadded_size(), 250U);
  }
}

TEST(DistributedSampler, RefusesAWorldThatCannotBe) {
  EXPECT_THROW(DistributedSampler(10, 0, 0), std::invalid_argument);
  EXPECT_THROW(DistributedSampler(10, -2, 0), std::invalid_argument);
  EXPECT_THROW(DistributedSampler(10, 2, 2), std::invalid_argument);
  EXPECT_THROW(DistributedSampler(10, 2, -1), std::invalid_argument);
}

TEST(DistributedSampler, RefusesToShuffleWhereTorchChangesItsScheme) {
  EXPECT_THROW(DistributedSampler(kMaxShuffledSamples, 2, 0), std::invalid_argument);
  EXPECT_NO_THROW(DistributedSampler(kMaxShuffledSamples - 1, 2, 0));
  EXPECT_NO_THROW(DistributedSampler(kMaxShuffledSamples, 2, 0, {.shuffle = false}));
}

}  // namespace
}  // namespace ddprun::worker
