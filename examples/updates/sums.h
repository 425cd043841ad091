// Three ways in which the ranks' gradients become their sum, and the bytes that each rank sends and
// receives. K bytes and N ranks. If all go through rank 0, it moves 2(N-1)K, which grows with N.
// Around a ring each rank sends 2K(N-1)/N, which is the least possible. In shared memory nothing is
// sent. One thread.
#pragma once

#include <ddprun/collective.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace ddprun::examples {

// One send() of a rank.
struct SentNumbers {
  std::span<const float> numbers;
  std::size_t to = 0;
  std::chrono::steady_clock::time_point begin, end;
};

// send() and receive() of a collective, counted.
class CountedLinks {
 public:
  explicit CountedLinks(Collective& ranks) : ranks_(&ranks) {}

  std::size_t rank() const { return static_cast<std::size_t>(ranks_->rank()); }
  std::size_t ranks() const { return static_cast<std::size_t>(ranks_->world_size()); }

  void send(std::span<float> numbers, std::size_t to) {
    const auto begin = std::chrono::steady_clock::now();
    ranks_->send({numbers.data(), numbers.size()}, static_cast<int>(to));
    sent += numbers.size_bytes();
    if (note) note({numbers, to, begin, std::chrono::steady_clock::now()});
  }
  void receive(std::span<float> numbers, std::size_t from) {
    ranks_->receive({numbers.data(), numbers.size()}, static_cast<int>(from));
    received += numbers.size_bytes();
  }

  std::uint64_t sent = 0, received = 0;
  std::function<void(const SentNumbers&)> note;  // told of each send(), if there is one

 private:
  Collective* ranks_;
};

inline void add(std::span<float> into, std::span<const float> more) {
  std::ranges::transform(into, more, into.begin(), std::plus());
}

// Rank 0 gathers all gradients, adds them and sends the sum back.
inline void sum_at_server(CountedLinks& links, std::span<float> gradient) {
  if (links.rank() != 0) {
    links.send(gradient, 0);
    return links.receive(gradient, 0);
  }
  std::vector<float> other(gradient.size());
  for (std::size_t rank = 1; rank < links.ranks(); ++rank) {
    links.receive(other, rank);
    add(gradient, other);
  }
  for (std::size_t rank = 1; rank < links.ranks(); ++rank) links.send(gradient, rank);
}

// The gradient is cut into N chunks. In N-1 steps each rank adds a chunk to its neighbour's sum and
// passes it on. In N-1 more the sums go round. The length must be a multiple of N.
inline void sum_around_ring(CountedLinks& links, std::span<float> gradient) {
  const std::size_t ranks = links.ranks(), rank = links.rank(), length = gradient.size() / ranks;
  const std::size_t next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
  std::vector<float> other(length);
  const auto chunk = [&](std::size_t number) {
    return gradient.subspan(number % ranks * length, length);
  };
  for (std::size_t step = 0; step < 2 * (ranks - 1); ++step) {
    const auto outward = chunk(rank + 2 * ranks - step);
    const auto inward = chunk(rank + 2 * ranks - step - 1);
    // send() returns when all is received: if all ranks sent first, all would wait.
    if (rank % 2 == 0) links.send(outward, next);
    links.receive(other, previous);
    if (rank % 2 != 0) links.send(outward, next);
    if (step < ranks - 1)
      add(inward, other);
    else
      std::ranges::copy(other, inward.begin());
  }
}

// `gradient` must lie in memory from allocate().
inline void sum_in_collective(Collective& ranks, std::span<float> gradient) {
  ranks.wait(ranks.launch_sum({gradient.data(), gradient.size()}));
}

}  // namespace ddprun::examples
