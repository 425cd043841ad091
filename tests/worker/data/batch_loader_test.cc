#include <ddprun/data_loader.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace ddprun::worker {
namespace {

using Indices = std::vector<std::size_t>;

struct IndexBatch {
  Indices indices;
  std::uint64_t epoch = 0;
  bool pinned = false;
  void pin() { pinned = true; }
};

// Gives the indices themselves. Reads take unequal times.
class IndexDataset {
 public:
  explicit IndexDataset(std::size_t bad = SIZE_MAX) : bad_(bad) {}

  IndexBatch batch(const BatchRequest& request) const {
    ++reads_;
    for (const std::size_t index : request.indices) {
      if (index == bad_) throw std::runtime_error("read sample " + std::to_string(index));
    }
    for (std::size_t spins = request.indices[0] % 7; spins > 0; --spins) std::this_thread::yield();
    return {{request.indices.begin(), request.indices.end()}, request.epoch};
  }
  std::size_t reads() const { return reads_; }

 private:
  std::size_t bad_;
  mutable std::atomic<std::size_t> reads_ = 0;
};

std::vector<Indices> cut(const Indices& indices, std::size_t batch_size, bool drop_last) {
  std::vector<Indices> batches;
  for (std::size_t at = 0; at < indices.size(); at += batch_size) {
    const std::size_t end = std::min(at + batch_size, indices.size());
    if (drop_last && end - at < batch_size) break;
    batches.emplace_back(indices.begin() + static_cast<std::ptrdiff_t>(at),
                         indices.begin() + static_cast<std::ptrdiff_t>(end));
  }
  return batches;
}

TEST(BatchLoader, GivesTheSamplersOrderWithAnyNumberOfThreads) {
  const IndexDataset dataset;
  DistributedSampler sampler(1003, 3, 1, {.seed = 4});
  for (const std::size_t workers : {0U, 1U, 2U, 5U}) {
    for (const bool drop_last : {false, true}) {
      BatchLoader loader(dataset, sampler, 8, {.workers = workers, .drop_last = drop_last});
      for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
        sampler.set_epoch(epoch);
        std::vector<Indices> given;
        for (const auto& batch : loader) {
          EXPECT_EQ(batch.epoch, epoch);
          EXPECT_FALSE(batch.pinned);
          given.push_back(batch.indices);
        }
        EXPECT_EQ(given, cut(sampler.indices(), 8, drop_last)) << workers << " workers";
        EXPECT_EQ(given.size(), loader.size());
      }
    }
  }
}

// loader_vectors.txt has the batches that torch's DataLoader gave to each rank.
TEST(BatchLoader, GivesTheBatchesOfPyTorch) {
  std::ifstream file(DDPRUN_LOADER_VECTORS);
  int cases = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream in(line);
    std::size_t samples = 0, batch_size = 0, torchs_workers = 0;
    int replicas = 0, rank = 0;
    bool drop_last = false;
    std::uint64_t epoch = 0;
    std::string bar, word;
    in >> samples >> replicas >> rank >> batch_size >> drop_last >> torchs_workers >> epoch >> bar;
    ASSERT_TRUE(in && bar == "|") << line;
    std::vector<Indices> recorded;
    for (Indices batch; in >> word;) {
      if (word != ";") {
        batch.push_back(std::stoul(word));
      } else {
        recorded.push_back(batch);
        batch.clear();
      }
    }
    const IndexDataset dataset;
    DistributedSampler sampler(samples, replicas, rank, {.seed = 4});
    sampler.set_epoch(epoch);
    BatchLoader loader(dataset, sampler, batch_size, {.workers = 2, .drop_last = drop_last});
    EXPECT_EQ(loader.size(), recorded.size()) << line;
    std::vector<Indices> given;
    for (const auto& batch : loader) given.push_back(batch.indices);
    EXPECT_EQ(given, recorded) << line;
    ++cases;
  }
  EXPECT_EQ(cases, 144);
}

TEST(BatchLoader, PinsInTheReader) {
  const IndexDataset dataset;
  const DistributedSampler sampler(20, 1, 0);
  BatchLoader loader(dataset, sampler, 5, {.pin = true});
  for (const auto& batch : loader) EXPECT_TRUE(batch.pinned);
}

TEST(BatchLoader, ThrowsAtThePlaceOfTheBatch) {
  for (const std::size_t workers : {0U, 1U, 4U}) {
    const IndexDataset dataset(33);
    const DistributedSampler sampler(100, 1, 0, {.shuffle = false});
    BatchLoader loader(dataset, sampler, 10, {.workers = workers});
    std::size_t given = 0;
    std::string error;
    try {
      for (const auto& batch : loader) given += batch.indices.size();
    } catch (const std::runtime_error& thrown) {
      error = thrown.what();
    }
    EXPECT_EQ(error, "read sample 33");
    EXPECT_EQ(given, 30U);
  }
}

TEST(BatchLoader, ReadsNoFurtherAheadThanAsked) {
  const IndexDataset dataset;
  const DistributedSampler sampler(1000, 1, 0);
  BatchLoader loader(dataset, sampler, 1, {.workers = 3, .prefetch = 2});
  auto batch = loader.begin();
  ++batch;
  while (dataset.reads() < 8) std::this_thread::yield();
  EXPECT_EQ(dataset.reads(), 8U);  // two given, six beyond them
  ++batch;
  while (dataset.reads() < 9) std::this_thread::yield();
  EXPECT_EQ(dataset.reads(), 9U);
}

TEST(BatchLoader, CanBeLeftAndBegunAgain) {
  const IndexDataset dataset;
  const DistributedSampler sampler(50, 1, 0);
  BatchLoader loader(dataset, sampler, 4);
  for (int times = 0; times < 20; ++times) {
    EXPECT_EQ((*loader.begin()).indices, cut(sampler.indices(), 4, false)[0]);
  }
}

TEST(BatchLoader, ItsStateIsNoneOfTheNextEpochs) {
  const IndexDataset dataset;
  DistributedSampler sampler(50, 1, 0);
  BatchLoader loader(dataset, sampler, 4);
  for (const auto& batch : loader) EXPECT_FALSE(batch.indices.empty());
  EXPECT_EQ(loader.state().consumed, 50U);
  sampler.set_epoch(1);
  EXPECT_EQ(loader.state(), (SamplerState{.epoch = 1, .consumed = 0}));
}

TEST(BatchLoader, OfNoSamplesGivesNoBatch) {
  const IndexDataset dataset;
  const DistributedSampler sampler(0, 1, 0);
  BatchLoader loader(dataset, sampler, 4);
  EXPECT_TRUE(loader.begin() == loader.end());
  EXPECT_THROW(BatchLoader(dataset, sampler, 0), std::invalid_argument);
}

// An epoch in parts, each on another number of ranks: what is left is dealt, and nothing is seen
// twice.
TEST(BatchLoader, ItsStateGoesOnWithAnyNumberOfRanks) {
  constexpr std::size_t kSamples = 240;
  const IndexDataset dataset;
  for (const std::vector<int>& worlds : {std::vector{2, 2}, {4, 2, 3}, {1, 5}, {3, 4, 1}}) {
    SamplerState state{.epoch = 7};
    std::multiset<std::size_t> seen;
    for (const int world : worlds) {
      SamplerState after;
      for (int rank = 0; rank < world; ++rank) {
        DistributedSampler sampler(kSamples, world, rank, {.seed = 2});
        sampler.resume(state);
        BatchLoader loader(dataset, sampler, 4);
        std::size_t batches = 5;
        for (const auto& batch : loader) {
          seen.insert(batch.indices.begin(), batch.indices.end());
          if (world != worlds.back() && --batches == 0) break;
        }
        if (rank == 0) after = loader.state();
        EXPECT_EQ(loader.state(), after);
      }
      state = after;
    }
    EXPECT_EQ(state.consumed, kSamples);
    EXPECT_EQ(seen.size(), kSamples);
    EXPECT_EQ(std::set<std::size_t>(seen.begin(), seen.end()).size(), kSamples);
  }
}

TEST(DistributedSamplerState, WithAsManyRanksIsTheRestOfTheList) {
  for (const bool drop_last : {false, true}) {
    for (const std::size_t taken : {0U, 3U, 33U, 34U}) {
      for (int rank = 0; rank < 3; ++rank) {
        DistributedSampler sampler(100, 3, rank, {.seed = 8, .drop_last = drop_last});
        sampler.set_epoch(2);
        const Indices whole = sampler.indices();
        const std::size_t unpadded = sampler.unpadded_size();
        const std::size_t from = std::min<std::size_t>(taken, whole.size());
        sampler.resume(sampler.state(from));
        EXPECT_EQ(sampler.indices(),
                  Indices(whole.begin() + static_cast<std::ptrdiff_t>(from), whole.end()));
        EXPECT_EQ(sampler.unpadded_size(), unpadded - std::min(unpadded, from));
        sampler.set_epoch(2);
        EXPECT_EQ(sampler.indices(), whole);
      }
    }
  }
}

}  // namespace
}  // namespace ddprun::worker
