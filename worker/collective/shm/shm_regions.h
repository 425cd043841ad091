// The memory in which the ranks of a host sum. It has regions that all ranks map, with a slice for
// each of them. Part of ShmCollective: one thread.
#pragma once

#include <ddprun/collective.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/collective/shm/shm_layout.h"
#include "worker/collective/shm/shm_peers.h"
#include "worker/collective/shm/shm_segment.h"

namespace ddprun::worker {

// "adds 16 elements of type float32 at byte 0", "averages … and keeps its part".
std::string describe(const SumSlot& sum);

class ShmRegions {
 public:
  // Both must outlive this. `ranks` is the collective that this is a part of.
  ShmRegions(Collective& ranks, ShmPeers& peers) : ranks_(ranks), peers_(peers) {}

  // Collective::allocate().
  std::shared_ptr<std::byte> allocate(std::size_t bytes);

  // How all ranks name this memory. Throws CollectiveError if it did not come from allocate().
  SumSlot describe(Flat flat, Reduction reduction) const;

  // Keeps the region's memory.
  std::shared_ptr<ShmSegment> hold(std::uint32_t region) const {
    return regions_[region].segment.lock();
  }
  std::byte* slice(std::uint32_t region, std::size_t rank) const {
    return regions_[region].base + rank * regions_[region].slice_bytes;
  }

 private:
  // The reference is weak: only pointers from allocate() and sums under way keep the mapping.
  // Regions are never erased, since sums name them by their index.
  struct Region {
    std::weak_ptr<ShmSegment> segment;
    std::byte* base = nullptr;
    std::size_t slice_bytes = 0;
  };

  std::shared_ptr<ShmSegment> make(std::size_t slice_bytes);

  Collective& ranks_;
  ShmPeers& peers_;
  std::vector<Region> regions_;
};

}  // namespace ddprun::worker
