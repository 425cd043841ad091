#include "worker/collective/core/equal_word.h"

#include <cstring>

#include "base/assert.h"

namespace ddprun::worker {
namespace {

constexpr unsigned kPieceBits = 16;

}  // namespace

WordSums pieces_of(std::uint64_t word) {
  WordSums pieces{};
  for (std::size_t i = 0; i < pieces.size(); i += 2, word >>= kPieceBits) {
    pieces[i] = static_cast<std::int64_t>(word & ((1U << kPieceBits) - 1));
    pieces[i + 1] = pieces[i] * pieces[i];
  }
  return pieces;
}

// N times the sum of the squares, less the square of the sum, is 0 only if all are equal. It is the
// sum of (a - b)² over all pairs of ranks. It is below 2^64, so numbers that wrap do no harm.
bool all_equal(const WordSums& sums, std::uint64_t ranks) {
  for (std::size_t i = 0; i < sums.size(); i += 2) {
    const auto sum = static_cast<std::uint64_t>(sums[i]);
    if (ranks * static_cast<std::uint64_t>(sums[i + 1]) != sum * sum) return false;
  }
  return true;
}

EqualWord::EqualWord(Collective& ranks) : ranks_(ranks), memory_(ranks.allocate(sizeof(WordSums))) {
  DDPRUN_ASSERT(ranks.device() == Device::kCpu);
}

void EqualWord::launch(std::uint64_t word, const OperationName& name) {
  const WordSums pieces = pieces_of(word);
  std::memcpy(memory_.get(), pieces.data(), sizeof pieces);
  under_way_ = ranks_.launch_sum({memory_.get(), pieces.size(), Dtype::kInt64, name});
}

bool EqualWord::finish() {
  DDPRUN_ASSERT(under_way_);
  ranks_.wait(*under_way_);
  under_way_.reset();
  WordSums sums{};
  std::memcpy(sums.data(), memory_.get(), sizeof sums);
  return all_equal(sums, static_cast<std::uint64_t>(ranks_.world_size()));
}

}  // namespace ddprun::worker
