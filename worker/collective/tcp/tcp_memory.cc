#include "worker/collective/tcp/tcp_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace ddprun::worker {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

}  // namespace

std::shared_ptr<std::byte> TcpMemory::allocate(std::size_t bytes) {
  const std::size_t bound = bytes < 2 * kHugePageBytes ? kPageBytes : kHugePageBytes;
  const std::size_t length = (std::max<std::size_t>(bytes, 1) + bound - 1) / bound * bound;
  // Reserved with one bound too much, so that a bound lies in it.
  void* mapped =
      ::mmap(nullptr, length + bound, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    throw CollectiveError(fmt::format("{} MiB of memory for sums: {}", bytes >> 20U,
                                      std::generic_category().message(errno)));
  }
  const auto address = reinterpret_cast<std::uintptr_t>(mapped);
  auto* base = static_cast<std::byte*>(mapped) + ((bound - address % bound) % bound);
  if (bound == kHugePageBytes) ::madvise(base, length, MADV_HUGEPAGE);  // may fail
  std::shared_ptr<std::byte> memory(
      base, [mapped, all = length + bound](std::byte* /*base*/) { ::munmap(mapped, all); });
  adopt(memory, length);
  return memory;
}

void TcpMemory::adopt(const std::shared_ptr<std::byte>& memory, std::size_t bytes) {
  std::erase_if(regions_, [](const Region& region) { return region.memory.expired(); });
  regions_.push_back({memory, memory.get(), bytes});
}

std::shared_ptr<std::byte> TcpMemory::hold(const Flat& flat) const {
  const auto* data = static_cast<const std::byte*>(flat.data);
  for (const Region& region : regions_) {
    if (data < region.base || data + flat.bytes() > region.base + region.bytes) continue;
    if (auto memory = region.memory.lock()) return memory;
  }
  throw CollectiveError("sum of memory that did not come from allocate()");
}

}  // namespace ddprun::worker
