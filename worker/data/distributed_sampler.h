// Which samples this rank trains on in an epoch. The indices are exactly those of PyTorch's
// DistributedSampler (torch 2.11, torch/utils/data/distributed.py, with randperm of
// aten/src/ATen/native/TensorFactories.cpp). So a job can move between the two and see the same
// batches. Pure arithmetic, no LibTorch: it holds no data, and every rank computes its own list
// without asking another. The training program owns it and uses it from one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ddprun::worker {

// For so many samples or more, torch's randperm draws its numbers in another way, which this class
// does not have. It refuses to shuffle them: the order would not be PyTorch's.
constexpr std::size_t kMaxShuffledSamples = 0xFFFFFFFFU / 20;

struct SamplerOptions {
  bool shuffle = true;
  // Must be equal on all ranks. The generator sees the low 32 bits of seed + epoch.
  std::uint64_t seed = 0;
  // If the samples cannot be dealt out evenly: true leaves out the last few; false repeats some
  // from the start, so that all ranks get equally many.
  bool drop_last = false;
};

class DistributedSampler {
 public:
  // Deals `sample_count` samples to `replicas` ranks. Throws std::invalid_argument if replicas < 1,
  // if rank is not in 0 … replicas-1, or if kMaxShuffledSamples samples or more shall be shuffled.
  DistributedSampler(std::size_t sample_count, int replicas, int rank, SamplerOptions options = {});

  // Call before each epoch, with the same number on all ranks. Without it every epoch has the order
  // of epoch 0.
  void set_epoch(std::uint64_t epoch) { epoch_ = epoch; }

  // This rank's samples of the epoch, in order: size() indices, each in 0 … sample_count-1. Takes
  // O(sample_count) time.
  std::vector<std::size_t> indices() const;

  // How many samples a rank gets; equal on all ranks.
  std::size_t size() const { return size_; }

  // How many entries of indices() come before the padding. The entries from there on repeat samples
  // that some rank has already: they must weigh 0 in a metric. Equals size() with drop_last.
  std::size_t unpadded_size() const;

 private:
  std::vector<std::size_t> order() const;

  std::size_t sample_count_;
  std::size_t replicas_;
  std::size_t rank_;
  SamplerOptions options_;
  std::size_t size_ = 0;
  std::uint64_t epoch_ = 0;
};

}  // namespace ddprun::worker
