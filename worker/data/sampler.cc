#include <ddprun/sampler.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>

namespace ddprun {

namespace {

void require(bool holds, const std::string& otherwise) {
  if (!holds) throw std::invalid_argument("distributed sampler: " + otherwise);
}

// torch.randperm(n) of a CPU generator seeded with `seed`. std::mt19937 is the same generator with
// the same seeding. As in torch, the swaps run forward, and the last element draws none. A number
// is taken modulo the rest, which is a little uneven.
void shuffle_as_torch(std::vector<std::size_t>& order, std::uint64_t seed) {
  std::mt19937 generator(static_cast<std::uint32_t>(seed));
  for (std::size_t i = 0; i + 1 < order.size(); ++i) {
    std::swap(order[i], order[i + generator() % (order.size() - i)]);
  }
}

}  // namespace

DistributedSampler::DistributedSampler(std::size_t sample_count, int replicas, int rank,
                                       SamplerOptions options)
    : sample_count_(sample_count),
      replicas_(static_cast<std::size_t>(replicas)),
      rank_(static_cast<std::size_t>(rank)),
      options_(options) {
  require(replicas >= 1, std::to_string(replicas) + " replicas; at least 1 is needed");
  require(rank >= 0 && rank < replicas,
          "rank " + std::to_string(rank) + " is not in 0 … " + std::to_string(replicas - 1));
  // Any number is fine without shuffling: no random number is drawn.
  require(!options.shuffle || sample_count < kMaxShuffledSamples,
          std::to_string(sample_count) +
              " samples cannot be shuffled in PyTorch's order; fewer than " +
              std::to_string(kMaxShuffledSamples) + " can");
}

// Samples of the epoch that nobody has trained on. The padding of an epoch counts as consumed, too.
std::size_t DistributedSampler::rest() const {
  return sample_count_ - std::min(sample_count_, state_.consumed);
}

std::size_t DistributedSampler::size() const {
  const std::size_t even = rest() / replicas_;
  return !options_.drop_last && rest() % replicas_ != 0 ? even + 1 : even;
}

std::vector<std::size_t> DistributedSampler::order() const {
  std::vector<std::size_t> order(sample_count_);
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (options_.shuffle) shuffle_as_torch(order, options_.seed + state_.epoch);
  return order;
}

std::vector<std::size_t> DistributedSampler::indices() const {
  const std::vector<std::size_t> all = order();
  std::vector<std::size_t> mine(size());
  for (std::size_t i = 0; i < mine.size(); ++i) {
    // Past the end the order starts again: several times if there are more ranks than samples.
    mine[i] = all[(state_.consumed + rank_ + i * replicas_) % sample_count_];
  }
  return mine;
}

// Entry i is sample number rank + i * replicas of the rest of the epoch: padding from rest() on.
std::size_t DistributedSampler::unpadded_size() const {
  if (rank_ >= rest()) return 0;
  return std::min(size(), (rest() - rank_ + replicas_ - 1) / replicas_);
}

}  // namespace ddprun
