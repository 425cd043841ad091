#include "worker/training/sharded/unit_layout.h"

#include <algorithm>

namespace ddprun::worker {
namespace {

std::int64_t divide_up(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

}  // namespace

UnitLayout::UnitLayout(std::span<const std::int64_t> counts, std::int64_t alignment, int ranks,
                       bool equal_shards) {
  for (const std::int64_t count : counts) {
    const std::int64_t begin = divide_up(length_, alignment) * alignment;
    if (begin > length_) gaps_.push_back({length_, begin});
    length_ = begin + count;
    parameters_.push_back({begin, length_});
  }
  const std::int64_t shard = divide_up(divide_up(length_, ranks), alignment) * alignment;
  if (equal_shards && length_ < ranks * shard) {
    gaps_.push_back({length_, ranks * shard});
    length_ = ranks * shard;
  }
  for (int rank = 0; rank < ranks; ++rank)
    shards_.push_back({std::min(length_, rank * shard), std::min(length_, (rank + 1) * shard)});
}

}  // namespace ddprun::worker
