// The worker's page: 64 bytes of memory that an agent shares with one worker. The worker writes how
// far it is, without a system call; the agent reads. The Python hook and the engine write it; a
// program that uses neither leaves it zero. All pages of a node are in one file (WorkerPages), which
// the worker finds by DDPRUN_PAGE:
//
//   DDPRUN_PAGE=<offset>:<names offset>:<names bytes>:<path of the file>
//
// At `offset` is a WorkerPage, at `names offset` the names of the modules that a Python worker has
// imported, one a line, WorkerPage::names_size bytes of them. Times are those of CLOCK_MONOTONIC, in
// nanoseconds. 0 means: not yet.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ddprun {

inline constexpr const char* kWorkerPageVariable = "DDPRUN_PAGE";

struct WorkerPage {
  std::atomic<std::uint64_t> steps;       // of optimizers, since the worker's first line
  std::atomic<std::uint64_t> last_step;   // when the last one was done
  std::atomic<std::uint64_t> first_step;  // when the first one was done
  std::atomic<std::uint64_t> first_line;  // when the user's code began
  std::atomic<std::uint64_t> names_size;
  std::uint64_t unused[3];
};

inline constexpr std::size_t kWorkerPageBytes = 64;
static_assert(sizeof(WorkerPage) == kWorkerPageBytes);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "it is shared between processes");

// This worker's page. Memory that nobody reads, if no agent made one. Maps it at the first call and
// never unmaps it. Any thread.
WorkerPage& own_worker_page();

// The user's code begins; a step is done. Both now. Only one thread at a time counts steps.
void note_first_line(WorkerPage& page);
void count_step(WorkerPage& page);

}  // namespace ddprun
