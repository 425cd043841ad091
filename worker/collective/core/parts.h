// The parts of a reduce-scatter or an all-gather, and what a rank launches. Pure.
#pragma once

#include <ddprun/collective.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "worker/collective/core/operation_ring.h"

namespace ddprun::worker {

// The results that each rank gets: all of them, those of its parts, or all parts.
enum class Sharing : std::uint8_t { kAllReduce, kReduceScatter, kAllGather };

// Returns the parts in the order of their elements, without empty ones. Neighbours of one owner are
// one part. Throws std::invalid_argument, which begins with `what`, as collective.h says.
std::vector<Part> tidy_parts(std::string_view what, const Flat& flat, std::span<const Part> parts,
                             int ranks);

// Never 0. Ranks compare it: unlike parts have unlike hashes, but for bad luck of 1 in 2^64.
std::uint64_t hash_of(std::span<const Part> parts);

// An operation that a rank launches on a Flat.
struct LaunchRequest {
  Sharing sharing = Sharing::kAllReduce;
  Reduction reduction = Reduction::kSum;  // not of an all-gather
  std::vector<Part> parts = {};           // tidy; not of an all-reduce

  OperationKind kind() const;
  std::uint64_t hash() const { return sharing == Sharing::kAllReduce ? 0 : hash_of(parts); }
};

// The requests of Collective's three launches, on `ranks` ranks. The last two throw as tidy_parts()
// does.
LaunchRequest all_reduce_of(Reduction reduction);
LaunchRequest reduce_scatter_of(const Flat& flat, std::span<const Part> parts, Reduction reduction,
                                int ranks);
LaunchRequest all_gather_of(const Flat& flat, std::span<const Part> parts, int ranks);

}  // namespace ddprun::worker
