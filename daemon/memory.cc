#include "daemon/memory.h"

#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>

// jemalloc(3). Null where it is not linked: in ddpctl, in tests and with a sanitizer.
extern "C" [[gnu::weak]] int mallctl(const char* name, void* old_value, std::size_t* old_bytes,
                                     void* new_value, std::size_t new_bytes);
// glibc's, malloc_trim(3). Weak, too: a real reference would bring its malloc in beside jemalloc's.
extern "C" [[gnu::weak]] int malloc_trim(std::size_t kept_bytes);

namespace ddprun::daemon {
namespace {

// dl_iterate_phdr(3): the program itself comes first, and the answer 1 ends it there.
int read_segments_in(dl_phdr_info* program, std::size_t /*bytes*/, void* /*context*/) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  for (int index = 0; index < program->dlpi_phnum; ++index) {
    const auto& segment = program->dlpi_phdr[index];
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_W) != 0) continue;
    const std::uintptr_t from = program->dlpi_addr + segment.p_vaddr;
    const std::uintptr_t start = from - from % page;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of the program's own
    ::madvise(reinterpret_cast<void*>(start), from + segment.p_memsz - start, MADV_POPULATE_READ);
  }
  return 1;
}

}  // namespace

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

void read_program_in() { ::dl_iterate_phdr(read_segments_in, nullptr); }

}  // namespace ddprun::daemon
