#include "worker/training/data_parallel/malloc_settings.h"

#include <malloc.h>

#include <cstdlib>
#include <limits>

namespace ddprun::worker {

// The trim threshold says how much free memory at the top of the heap goes back to the kernel. From
// the other size on a block is mapped for itself, and unmapped when it is freed. glibc takes no
// more than 32 MiB for that (mallopt(3)); below it freed blocks go back into the heap.
std::string set_up_malloc() {
  for (const char* name : {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_",
                           "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES"}) {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): no thread changes the environment
    if (std::getenv(name) != nullptr) return name;
  }
  constexpr int kMappedFrom = 32 << 20;
  // NOLINTBEGIN(concurrency-mt-unsafe): glibc's takes the lock of its memory
  ::mallopt(M_MMAP_THRESHOLD, kMappedFrom);
  ::mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  // NOLINTEND(concurrency-mt-unsafe)
  return {};
}

}  // namespace ddprun::worker
