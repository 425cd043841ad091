// The worker's page: 64 bytes of words, and a lock, in memory that an agent shares with one worker.
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
  char unused_too[64 - sizeof(pthread_mutex_t)];

  // The word that the kernel changes. glibc has it first in its mutex (glibc 2.36,
  // sysdeps/nptl/bits/struct_mutex.h). A worker with another C library does not take the lock.
  std::atomic<std::uint32_t>* lock_word() {
    return reinterpret_cast<std::atomic<std::uint32_t>*>(&lock);
  }
};

inline constexpr std::uint64_t kNoWitness = ~std::uint64_t{0};

inline constexpr std::size_t kWorkerPageBytes = 128;
static_assert(sizeof(WorkerPage) == kWorkerPageBytes);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "it is shared between processes");

// This worker's page. Memory that nobody reads, if no agent made one. Maps it at the first call and
// never unmaps it. Any thread.
WorkerPage& own_worker_page();

// The user's code begins; a step is done. Both now. Only one thread at a time counts steps.
// note_first_line() also takes the lock, so the main thread calls it.
void note_first_line(WorkerPage& page);
void count_step(WorkerPage& page);

}  // namespace ddprun
