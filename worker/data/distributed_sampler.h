// Which samples this rank trains on in an epoch: the exact indices of PyTorch's DistributedSampler
// (torch 2.11, torch/utils/data/distributed.py over randperm of
// aten/src/ATen/native/TensorFactories.cpp), so that a job can move between the two and see the
// same batches. Pure arithmetic, no LibTorch: holds no data and no clock, and every rank computes
// its own list without asking anyone. Any thread; one object belongs to one data loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ddprun::worker {

// From here on torch's randperm draws its numbers by another scheme, which this class does not
// repeat: shuffling so many samples is refused rather than given in another order than PyTorch's.
constexpr std::size_t kMaxShuffledSamples = 0xFFFFFFFFU / 20;

struct SamplerOptions {
  bool shuffle = true;
  std::uint64_t seed = 0;  // equal on all ranks; the generator sees the low 32 bits of seed + epoch
  // True: leave out the tail that does not fill every rank; false: repeat samples from the start.
  bool drop_last = false;
};

class DistributedSampler {
 public:
  // Deals `sample_count` samples to `replicas` ranks. Throws std::invalid_argument where replicas <
  // 1, rank is not in 0 … replicas-1, or shuffling is asked for kMaxShuffledSamples samples or
  // more.
  DistributedSampler(std::size_t sample_count, int replicas, int rank, SamplerOptions options = {});

  // Call before each epoch, with the same number on all ranks; without it every epoch has the order
  // of epoch 0.
  void set_epoch(std::uint64_t epoch) { epoch_ = epoch; }

  // This rank's samples of the epoch in order, size() of them, each in 0 … sample_count-1.
  // O(sample_count) time.
  std::vector<std::size_t> indices() const;

  // Samples a rank gets, equal on all ranks.
  std::size_t size() const { return size_; }

  // How many of the first size() entries are no repetition: the entries from here on are padding,
  // already seen elsewhere, and must weigh 0 in a metric. Equals size() with drop_last.
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
