#include "daemon/memory.h"

#include <unistd.h>

#include <cstddef>
#include <cstdio>

// jemalloc(3). Null where it is not linked: in ddpctl, in tests and with a sanitizer.
extern "C" [[gnu::weak]] int mallctl(const char* name, void* old_value, std::size_t* old_bytes,
                                     void* new_value, std::size_t new_bytes);
// glibc's, malloc_trim(3). Weak, too: a real reference would bring its malloc in beside jemalloc's.
extern "C" [[gnu::weak]] int malloc_trim(std::size_t kept_bytes);

namespace ddprun::daemon {

std::uint64_t memory_bytes() {
  std::FILE* const file = std::fopen("/proc/self/statm", "re");
  if (file == nullptr) return 0;
  unsigned long long total = 0;
  unsigned long long resident = 0;
  const int read = std::fscanf(file, "%llu %llu", &total, &resident);
  std::fclose(file);
  return read == 2 ? resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) : 0;
}

void give_memory_back() {
  // 4096: all arenas (MALLCTL_ARENAS_ALL).
  if (mallctl != nullptr)
    ::mallctl("arena.4096.purge", nullptr, nullptr, nullptr, 0);
  else if (malloc_trim != nullptr)
    ::malloc_trim(0);
}

}  // namespace ddprun::daemon
