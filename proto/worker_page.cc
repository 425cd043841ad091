#include "proto/worker_page.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
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

// Waits until the order changes that a rank holds. The agent ends that.
void wait_for_next_order(WorkerPage& page, std::uint64_t held) {
  ::syscall(SYS_futex, &page.order, FUTEX_WAIT, static_cast<std::uint32_t>(held), nullptr, nullptr,
            0);
}

// A step is done, and there is an order.
void obey_order(WorkerPage& page) {
  for (;;) {
    const std::uint64_t word = page.order;
    const PageOrder order = unpack_order(word);
    const std::uint64_t taken = page.taken;
    const AfterStep what = after_step(order, page.order_step, page.steps, taken & ~kAsksItself);
    if (what == AfterStep::kWait) {
      wait_for_next_order(page, word);
      continue;
    }
    // A program that asks takes it then.
    if (what == AfterStep::kGoOn || (taken & kAsksItself) != 0) return;
    page.taken = order.number;
    if (order.signo != 0) ::kill(::getpid(), order.signo);
    return;
  }
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
  if (page.order != 0) obey_order(page);
}

bool is_ending(WorkerPage& page) {
  page.taken |= kAsksItself;
  const PageOrder order = unpack_order(page.order);
  const bool ends = order.is_taken && order.is_end && page.steps >= page.order_step;
  if (ends) page.taken = kAsksItself | order.number;
  return ends;
}

}  // namespace ddprun
