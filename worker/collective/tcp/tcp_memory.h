// The memory in which a rank sums over TCP. It is ordinary memory of its process, zeroed, and at
// bounds of a huge page if it is large. The registry knows what it has given out. One thread.
#pragma once

#include <ddprun/collective.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace ddprun::worker {

class TcpMemory {
 public:
  // Collective::allocate(). Throws CollectiveError where the kernel has none.
  std::shared_ptr<std::byte> allocate(std::size_t bytes);

  // Memory that somebody else has allocated.
  void adopt(const std::shared_ptr<std::byte>& memory, std::size_t bytes);

  // Keeps the memory that `flat` lies in. Throws CollectiveError if it did not come from
  // allocate().
  std::shared_ptr<std::byte> hold(const Flat& flat) const;

 private:
  struct Region {
    std::weak_ptr<std::byte> memory;
    const std::byte* base;
    std::size_t bytes;
  };
  std::vector<Region> regions_;
};

}  // namespace ddprun::worker
