#include "agent/standby/worker_pages.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/file_handle.h"
#include "base/limit_hint.h"

namespace ddprun::agent {
namespace {

std::size_t pages_bytes(int worker_count) {
  return static_cast<std::size_t>(worker_count) * kWorkerPageBytes;
}

// Returns the bytes of the pages and the notes behind them.
std::size_t file_bytes(int worker_count) {
  return pages_bytes(worker_count) +
         static_cast<std::size_t>(worker_count) * WorkerPages::kNotesBytes;
}

// Its last owner is dead.
void make_lock(pthread_mutex_t& lock) {
  pthread_mutexattr_t kind;
  ::pthread_mutexattr_init(&kind);
  ::pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
  ::pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
  ::pthread_mutex_init(&lock, &kind);
  ::pthread_mutexattr_destroy(&kind);
}

Error failed(const std::string& path, int why) {
  const bool is_limit = why == EMFILE || why == ENFILE;
  return {is_limit ? ErrorCode::kLimit : ErrorCode::kSystem,
          fmt::format("make the workers' pages {}: {}", path, describe_errno(why))};
}

}  // namespace

void WorkerPages::Unmap::operator()(void* memory) const { ::munmap(memory, bytes); }

Result<WorkerPages> WorkerPages::make(const std::string& path, int worker_count) {
  const std::size_t bytes = pages_bytes(worker_count);
  const FileHandle file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (file.get() < 0) return failed(path, errno);
  if (const int why = ::posix_fallocate(file.get(), 0, static_cast<off_t>(bytes)); why != 0)
    return failed(path, why);
  if (::ftruncate(file.get(), static_cast<off_t>(file_bytes(worker_count))) != 0)
    return failed(path, errno);
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) return failed(path, errno);
  return WorkerPages(path, worker_count, {memory, Unmap{bytes}});
}

std::string WorkerPages::variable(int local_rank) const {
  const auto rank = static_cast<std::size_t>(local_rank);
  const auto notes = pages_bytes(worker_count_) + rank * kNotesBytes;
  return fmt::format("{}:{}:{}:{}", rank * kWorkerPageBytes, notes, kNotesBytes, path_);
}

std::uint64_t WorkerPages::ask_witness(int local_rank) const {
  std::atomic<std::uint64_t>& asked = at(local_rank).asked;
  const std::uint64_t number = ++asked;
  ::syscall(SYS_futex, &asked, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  return number;
}

// A worker writes its steps, and then reads the order. It has no fence between them. So the kernel
// makes one on all processors (membarrier(2)). It takes some milliseconds, so it is one for all.
void WorkerPages::give_order(std::span<const int> local_ranks, const PageOrder& order,
                             std::int64_t step) const {
  for (const int rank : local_ranks) {
    at(rank).order_step = static_cast<std::uint64_t>(step);
    at(rank).order = pack(order);
  }
  ::syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0);
  for (const int rank : local_ranks)
    ::syscall(SYS_futex, &at(rank).order, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

WorkerPage& WorkerPages::at(int local_rank) const {
  return static_cast<WorkerPage*>(memory_.get())[local_rank];
}

void WorkerPages::begin(int local_rank, bool keeps_notes) {
  WorkerPage& page = at(local_rank);
  make_lock(page.lock);
  page.steps = 0;
  page.last_step = 0;
  page.first_step = 0;
  page.first_line = 0;
  page.witness = witness_;
  page.order = 0;
  page.order_step = 0;
  page.taken = 0;
  page.calls_begun = 0;
  page.calls_done = 0;
  if (keeps_notes) return;
  page.notes_size = 0;
  page.parks = 0;
}

}  // namespace ddprun::agent
