// The parts of a reduce-scatter or an all-gather, the transfers of an all-to-all, and what a rank
// launches. Pure.
#pragma once

#include <ddprun/collective.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "worker/collective/core/operation_ring.h"

namespace ddprun::worker {

// The elements that each rank gets: all sums, those of its parts, all parts, or its transfers.
enum class Sharing : std::uint8_t { kAllReduce, kReduceScatter, kAllGather, kAllToAll };

// The text for messages is "rank 0: sum: …".
const char* name_of(Sharing sharing);

// Returns the parts in the order of their elements, without empty ones. Neighbours of one owner are
// one part. Throws std::invalid_argument, which begins with `what`, as collective.h says.
std::vector<Part> tidy_parts(std::string_view what, const Flat& flat, std::span<const Part> parts,
                             int ranks);

// Returns the transfers in their order, without empty ones. Throws std::invalid_argument as
// collective.h says.
std::vector<Transfer> tidy_transfers(const Flat& flat, std::span<const Transfer> transfers,
                                     int ranks);

// Never 0. Ranks compare it: unlike parts have unlike hashes, but for bad luck of 1 in 2^64.
std::uint64_t hash_of(std::span<const Part> parts);

// An operation that a rank launches on a Flat.
struct LaunchRequest {
  Sharing sharing = Sharing::kAllReduce;
  Reduction reduction = Reduction::kSum;  // of an all-reduce or a reduce-scatter
  std::vector<Part> parts = {};           // tidy; of a reduce-scatter or an all-gather
  std::vector<Transfer> transfers = {};   // tidy; of an all-to-all

  OperationKind kind() const;
  // Returns hash_of() its parts or transfers; 0 of an all-reduce.
  std::uint64_t hash() const;
};

// The requests of Collective's launches, on `ranks` ranks. All but the first throw as tidy_parts()
// and tidy_transfers() do.
LaunchRequest all_reduce_of(Reduction reduction);
LaunchRequest reduce_scatter_of(const Flat& flat, std::span<const Part> parts, Reduction reduction,
                                int ranks);
LaunchRequest all_gather_of(const Flat& flat, std::span<const Part> parts, int ranks);
LaunchRequest all_to_all_of(const Flat& flat, std::span<const Transfer> transfers, int ranks);

}  // namespace ddprun::worker
