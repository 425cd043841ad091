// The worker's page: words and a lock, in memory that an agent shares with one worker.
// The worker writes how far it is, without a system call; the agent reads. The Python hook and the
// engine write it; a program that uses neither leaves it zero. All pages of a node are in one file
// (WorkerPages), which the worker finds by DDPRUN_PAGE:
//
//   DDPRUN_PAGE=<offset>:<notes offset>:<notes bytes>:<path of the file>
//
// At `offset` is a WorkerPage, at `notes offset` what a Python worker has imported, in that order,
// WorkerPage::notes_size bytes. Each entry ends with a zero byte. It is `+` and a module's name; or
// `!` and the name of one of the user's own modules. Or it is `-` and a name that was asked for and
// that no standby imports by itself. Or it is `?` and the name that was asked for last. Or it is
// `=NAME=VALUE`, a variable that the user's code has set before it imported the next one. Or it is
// `=NAME`, one that it has removed. Times are those of CLOCK_MONOTONIC, in nanoseconds. 0 means:
// not yet.
#pragma once

#include <pthread.h>

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
  std::atomic<std::uint64_t> notes_size;
  // Pid of the process that has come to the Python hook or to bootstrap(). A standby started by the
  // same command can wait there, if that is the process that the agent has started.
  std::atomic<std::uint64_t> parks;
  // The number of the last question to the witness, a thread of the worker that says where it is.
  // It sleeps on the lower half of this word (futex(2)). And the pid of the process that has one.
  std::atomic<std::uint64_t> asked;
  // kNoWitness: none is wanted.
  std::atomic<std::uint64_t> witness;
  // A robust lock (pthread_mutexattr_setrobust(3)) that the worker's main thread takes and never
  // gives back. The kernel does, when the worker dies.
  pthread_mutex_t lock;
  char unused[64 - sizeof(pthread_mutex_t)];
  // The step at whose end the ranks save (rendezvous/core/preemption.h), counted as `steps`.
  std::atomic<std::uint64_t> order_step;
  // PageOrder, packed. 0: there is none. A worker that holds sleeps on the lower half (futex(2)).
  std::atomic<std::uint64_t> order;
  // The worker writes the number of the order that it has taken, and kAsksItself.
  std::atomic<std::uint64_t> taken;
  // Calls of the engine's collectives that have begun, and those that are done. A rank with more of
  // the first may wait for other ranks.
  std::atomic<std::uint64_t> calls_begun;
  std::atomic<std::uint64_t> calls_done;
  char unused_too[64 - 5 * sizeof(std::uint64_t)];

  // The word that the kernel changes. glibc has it first in its mutex (glibc 2.36,
  // sysdeps/nptl/bits/struct_mutex.h). A worker with another C library does not take the lock.
  std::atomic<std::uint32_t>* lock_word() {
    return reinterpret_cast<std::atomic<std::uint32_t>*>(&lock);
  }
};

inline constexpr std::uint64_t kNoWitness = ~std::uint64_t{0};

// The order in a page. Its step is written before it.
struct PageOrder {
  std::uint32_t number = 0;  // counts from 1, below 1 << 30
  bool is_taken = false;     // false: a rank that has done the step waits for the next order
  bool is_end = false;       // the job ends; false: the worker goes on when it has saved
  int signo = 0;             // the worker sends it to itself; 0: it need not

  bool operator==(const PageOrder&) const = default;
};
constexpr std::uint64_t pack(const PageOrder& order) {
  return (std::uint64_t{order.is_end} << 40) | (static_cast<std::uint64_t>(order.signo) << 32) |
         (std::uint64_t{order.number} << 1) | std::uint64_t{order.is_taken};
}
constexpr PageOrder unpack_order(std::uint64_t word) {
  return {.number = static_cast<std::uint32_t>(word) >> 1,
          .is_taken = (word & 1) != 0,
          .is_end = ((word >> 40) & 1) != 0,
          .signo = static_cast<int>((word >> 32) & 0xFF)};
}
// The next act of a worker that has done a step.
enum class AfterStep {
  kGoOn,
  kWait,  // until the order changes
  kTake,  // it saves, and says so in WorkerPage::taken
};
// `taken`: as in the page, without kAsksItself.
constexpr AfterStep after_step(const PageOrder& order, std::uint64_t order_step,
                               std::uint64_t steps, std::uint64_t taken) {
  if (order.number == 0 || order.number == taken || steps < order_step) return AfterStep::kGoOn;
  return order.is_taken ? AfterStep::kTake : AfterStep::kWait;
}

// In WorkerPage::taken: the program asks whether it should save, so it needs no signal.
inline constexpr std::uint64_t kAsksItself = std::uint64_t{1} << 63;

inline constexpr std::size_t kWorkerPageBytes = 192;
static_assert(sizeof(WorkerPage) == kWorkerPageBytes);
static_assert(offsetof(WorkerPage, order_step) == 128, "the Python hook reads it there");
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "it is shared between processes");

// This worker's page. Memory that nobody reads, if no agent made one. Maps it at the first call and
// never unmaps it. Any thread.
WorkerPage& own_worker_page();

// The user's code begins; a step is done. Both now. Only one thread at a time counts steps.
// note_first_line() also takes the lock, so the main thread calls it.
void note_first_line(WorkerPage& page);
void count_step(WorkerPage& page);

// Whether the job ends, and this worker has done the step at whose end all ranks save. From the
// first call on it gets no signal for it. Any thread.
bool is_ending(WorkerPage& page);

}  // namespace ddprun
