// The samples that this rank trains on in an epoch. The indices are exactly those of PyTorch's
// DistributedSampler (torch 2.11, torch/utils/data/distributed.py, with randperm of
// aten/src/ATen/native/TensorFactories.cpp). So a job can move between the two and see the same
// batches. Pure arithmetic, no LibTorch: it holds no data, and every rank computes its own list
// without asking another. The training program owns it and uses it from one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ddprun {

// The number of samples that cannot be shuffled. For so many or more, torch's randperm draws its
// numbers in another way, which this class does not have. It refuses to shuffle them: the order
// would not be PyTorch's.
constexpr std::size_t kMaxShuffledSamples = 0xFFFFFFFFU / 20;

// Options of a DistributedSampler, the same on all ranks.
struct SamplerOptions {
  bool shuffle = true;  // another order in each epoch; false: that of the data
  // Must be equal on all ranks. The generator sees the low 32 bits of seed + epoch.
  std::uint64_t seed = 0;
  // For samples that cannot be dealt out evenly. True leaves out the last few. False repeats some
  // from the start, so that all ranks get equally many.
  bool drop_last = false;
};

// The position of a run in its data. Equal on all ranks; a checkpoint keeps it.
struct SamplerState {
  std::uint64_t epoch = 0;   // from 0
  std::size_t consumed = 0;  // samples of the epoch that all ranks have trained on, together

  bool operator==(const SamplerState&) const = default;
};

// The samples of one rank, epoch by epoch. See the head of this file.
class DistributedSampler {
 public:
  // Deals `sample_count` samples to `replicas` ranks. Throws std::invalid_argument if replicas < 1,
  // or if rank is not in 0 … replicas-1. Also if kMaxShuffledSamples samples or more shall be
  // shuffled.
  DistributedSampler(std::size_t sample_count, int replicas, int rank, SamplerOptions options = {});

  // Begins an epoch. All ranks must call it before each, with the same number. Without it every
  // epoch has the order of epoch 0. The epoch begins with its first sample.
  void set_epoch(std::uint64_t epoch) { resume({.epoch = epoch}); }

  // Goes on in the middle of an epoch: what `state.consumed` leaves of it is dealt to these ranks.
  // So as many ranks as before train on the samples that they would have had. With another number
  // no sample of the epoch is lost or seen twice. The exceptions are the padding, and those that
  // drop_last leaves out.
  void resume(const SamplerState& state) { state_ = state; }

  // Returns the state after `taken` entries of indices() have been trained on, on each rank.
  SamplerState state(std::size_t taken = 0) const {
    return {state_.epoch, state_.consumed + taken * replicas_};
  }

  // Returns this rank's samples of the epoch, or of the rest of it, in order. They are size()
  // indices, each in 0 … sample_count-1. Takes O(sample_count) time.
  std::vector<std::size_t> indices() const;

  // Returns how many samples a rank gets; equal on all ranks.
  std::size_t size() const;

  // Returns how many entries of indices() come before the padding. The entries from there on repeat
  // samples that some rank has already: they must weigh 0 in a metric. Equals size() with
  // drop_last.
  std::size_t unpadded_size() const;

 private:
  std::vector<std::size_t> order() const;
  std::size_t rest() const;

  std::size_t sample_count_;
  std::size_t replicas_;
  std::size_t rank_;
  SamplerOptions options_;
  SamplerState state_;
};

}  // namespace ddprun
