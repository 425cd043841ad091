// The pages of this node's workers (proto/worker_page.h): one file, mapped here and in each worker.
// The file is in the job's scratch folder. The blocks of the pages are there from the beginning: a
// write cannot fail for want of space. Behind the pages each worker has a place for notes. The hook
// asks for its blocks (python/), so only a Python program pays for them. Loop's thread; owned by
// Standbys.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "agent/core/clock.h"
#include "base/result.h"
#include "proto/worker_page.h"

namespace ddprun::agent {

// A time that a page tells: steady_clock is CLOCK_MONOTONIC.
inline Time time_of_page(std::uint64_t ns) { return Time(std::chrono::nanoseconds(ns)); }

class WorkerPages {
 public:
  // For the names of the modules that one worker imports. PyTorch's DDP imports some 2,000: 48 KiB.
  static constexpr std::size_t kNotesBytes = std::size_t{256} << 10;

  // Makes the file. Errors name it.
  static Result<WorkerPages> make(const std::string& path, int worker_count);

  // DDPRUN_PAGE of one worker.
  std::string variable(int local_rank) const;
  WorkerPage& page(int local_rank) const { return at(local_rank); }
  // Wakes the worker's witness, which answers in witness_<local rank>.<number> beside the file.
  // Returns the number.
  std::uint64_t ask_witness(int local_rank) const;
  // The step at whose end these workers save, or at which they wait. Wakes them. Afterwards a read
  // of their steps is later than what they do by an older order.
  void give_order(std::span<const int> local_ranks, const PageOrder& order,
                  std::int64_t step) const;
  // Before a worker starts: nothing is done yet. A standby keeps what its predecessor has noted.
  void begin(int local_rank, bool keeps_notes);
  // Workers start no witness.
  void forbid_witnesses() { witness_ = kNoWitness; }

 private:
  struct Unmap {
    std::size_t bytes = 0;
    void operator()(void* memory) const;
  };

  WorkerPages(std::string path, int worker_count, std::unique_ptr<void, Unmap> memory)
      : path_(std::move(path)), worker_count_(worker_count), memory_(std::move(memory)) {}

  WorkerPage& at(int local_rank) const;

  std::uint64_t witness_ = 0;  // WorkerPage::witness of a worker that starts
  std::string path_;
  int worker_count_;
  std::unique_ptr<void, Unmap> memory_;
};

}  // namespace ddprun::agent
