// An asynchronous parameter server. Rank 0 has the parameters, applies each gradient when it comes,
// and answers with the new ones. Nobody waits for the others. So a gradient may have been computed
// at parameters that others have changed meanwhile: a stale update. Rank 0 trains too.
#pragma once

#include <algorithm>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "examples/updates/sums.h"

namespace ddprun::examples {

// The parameters on rank 0, for its threads.
class SharedParameters {
 public:
  SharedParameters(std::vector<float> values, float rate)
      : values_(std::move(values)), rate_(rate) {}

  // Applies a gradient that was computed at version `seen`. The parameters replace it, and their
  // version `seen`.
  void update(std::span<float> gradient, std::uint64_t& seen) {
    const std::lock_guard lock(mutex_);
    if (version_ != seen) ++stale_;
    for (std::size_t i = 0; i < values_.size(); ++i) values_[i] -= rate_ * gradient[i];
    std::ranges::copy(values_, gradient.begin());
    seen = ++version_;
  }
  // Once all threads have ended.
  std::uint64_t updates() const { return version_; }
  std::uint64_t stale() const { return stale_; }
  const std::vector<float>& values() const { return values_; }

 private:
  std::mutex mutex_;
  std::vector<float> values_;
  float rate_;
  std::uint64_t version_ = 0, stale_ = 0;
};

// Rank 0 and each other rank as a world of two: a collective has one thread. All ranks must call
// it; rank 0 gets all pairs, another one its own.
inline std::vector<std::unique_ptr<Collective>> pairs_with_server(Collective& ranks) {
  std::vector<std::unique_ptr<Collective>> pairs;
  for (int other = 1; other < ranks.world_size(); ++other) {
    const bool member = ranks.rank() == 0 || ranks.rank() == other;
    auto pair = ranks.split(member ? 0 : -1, ranks.rank());
    if (pair) pairs.push_back(std::move(pair));
  }
  return pairs;
}

// Rank 0's thread for one other rank: so many updates. Returns what was sent and received.
inline CountedLinks serve(Collective& pair, SharedParameters& parameters, int steps) {
  CountedLinks links(pair);
  std::vector<float> numbers(parameters.values().size());
  std::uint64_t seen = 0;
  for (int step = 0; step < steps; ++step) {
    links.receive(numbers, 1);
    parameters.update(numbers, seen);
    links.send(numbers, 1);
  }
  return links;
}

// One thread for each other rank.
inline std::vector<std::future<CountedLinks>> serve_all(
    const std::vector<std::unique_ptr<Collective>>& pairs, SharedParameters& parameters,
    int steps) {
  std::vector<std::future<CountedLinks>> threads;
  for (const auto& pair : pairs) {
    threads.push_back(std::async(std::launch::async, [&pair, &parameters, steps] {
      return serve(*pair, parameters, steps);
    }));
  }
  return threads;
}

}  // namespace ddprun::examples
