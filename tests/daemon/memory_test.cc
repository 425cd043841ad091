#include "daemon/memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

namespace ddprun::daemon {
namespace {

struct Kib {
  std::uint64_t mapped = 0;
  std::uint64_t resident = 0;
};

std::string own_program() {
  std::array<char, 4096> path{};
  const auto bytes = ::readlink("/proc/self/exe", path.data(), path.size());
  return bytes > 0 ? std::string(path.data(), static_cast<std::size_t>(bytes)) : std::string();
}

// Sums the mappings that hold this program's code (proc(5), smaps).
Kib code() {
  Kib sum;
  std::ifstream maps("/proc/self/smaps");
  const std::string program = own_program();
  bool counts = false;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string first;
    std::string second;
    words >> first >> second;
    // The first line of a mapping: from-to, then its rights.
    if (first.find('-') != std::string::npos && first.back() != ':')
      counts = second.starts_with("r-x") && line.ends_with(program);
    if (counts && first == "Size:") sum.mapped += std::stoull(second);
    if (counts && first == "Rss:") sum.resident += std::stoull(second);
  }
  return sum;
}

TEST(MemoryTest, TheCodeIsReadIn) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto here = reinterpret_cast<std::uintptr_t>(&own_program);
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  if (::madvise(reinterpret_cast<void*>(here - here % page), page, MADV_POPULATE_READ) != 0)
    GTEST_SKIP() << "this kernel has no MADV_POPULATE_READ (Linux 5.14)";
  read_program_in();
  const Kib part = code();
  EXPECT_GT(part.mapped, 0U);
  // Nothing holds the pages: a machine short of memory may have taken some back already.
  EXPECT_GE(part.resident * 100, part.mapped * 95);
}

TEST(MemoryTest, TheKernelTellsWhatIsResident) { EXPECT_GT(memory_bytes(), 0U); }

}  // namespace
}  // namespace ddprun::daemon
