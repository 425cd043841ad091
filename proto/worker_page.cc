#include "proto/worker_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/file_handle.h"
#include "base/numbers.h"

namespace ddprun {
namespace {

std::uint64_t now() {
  return static_cast<std::uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
}

// The page that `variable` names; null if it names none.
WorkerPage* map_page(std::string_view variable) {
  const auto offset = leading_number<std::size_t>(variable);
  if (!offset || *offset % kWorkerPageBytes != 0) return nullptr;
  // The path is behind the third colon, and may have colons itself.
  std::size_t colon = 0;
  for (int i = 0; i < 3; ++i) {
    colon = variable.find(':', colon) + 1;
    if (colon == 0) return nullptr;
  }
  const FileHandle file(::open(std::string(variable.substr(colon)).c_str(), O_RDWR | O_CLOEXEC));
  struct stat facts {};
  if (file.get() < 0 || ::fstat(file.get(), &facts) != 0) return nullptr;
  const auto size = static_cast<std::size_t>(facts.st_size);
  // Behind the end of a file memory cannot be touched (mmap(2), SIGBUS).
  if (*offset + kWorkerPageBytes > size) return nullptr;
  void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) return nullptr;
  return static_cast<WorkerPage*>(memory) + *offset / kWorkerPageBytes;
}

}  // namespace

WorkerPage& own_worker_page() {
  static WorkerPage nobodys{};
  static WorkerPage* const own = [] {
    const char* variable = std::getenv(kWorkerPageVariable);  // NOLINT(concurrency-mt-unsafe)
    return variable == nullptr ? nullptr : map_page(variable);
  }();
  return own == nullptr ? nobodys : *own;
}

void note_first_line(WorkerPage& page) {
  page.first_line = now();
  // The main thread keeps it. A second call finds it taken.
  static_cast<void>(::pthread_mutex_trylock(&page.lock));
}

void count_step(WorkerPage& page) {
  const std::uint64_t moment = now();
  if (page.steps == 0) page.first_step = moment;
  page.last_step = moment;
  ++page.steps;
}

}  // namespace ddprun
