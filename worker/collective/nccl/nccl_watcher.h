// Watches the operations of one NCCL communicator, in a thread of its own, so that the program need
// not. It asks the GPU whether the oldest one is done, and NCCL whether anything is wrong; each has
// a deadline. At a failure it ends the communicator. Then the kernels that wait for a peer end, and
// a host that waits for its stream goes on. Every later call throws the reason. While nothing is
// under way it sleeps.
//
// It also keeps the ring of operations. It compares the ring with those of other ranks if they wait
// for long (desync_report.h). The collective owns it, and so does its thread: a call of CUDA or
// NCCL may never return. Only one thread at a time may call it.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "worker/collective/core/desync_report.h"
#include "worker/collective/core/operation_ring.h"
#include "worker/collective/nccl/communicator.h"
#include "worker/collective/nccl/cuda_parts.h"

namespace ddprun::worker {

class NcclWatcher : public std::enable_shared_from_this<NcclWatcher> {
 public:
  // Something on the collective's stream. Operations have one, gathers have two.
  class Work {
   public:
    // Valid once launched() was called with it.
    const Event& done() const { return *done_; }

   private:
    friend class NcclWatcher;
    std::uint32_t operation_ = 0;
    bool ends_operation_ = true;
    std::chrono::milliseconds limit_{};
    std::chrono::steady_clock::time_point begun_;
    std::optional<Event> ready_;  // what the program does before it
    std::optional<Event> done_;   // nothing: it is not launched yet
    bool over_ = false;
  };

  struct Options {
    int rank = 0;
    int ranks = 1;
    int gpu = 0;
    std::chrono::milliseconds timeout{};  // of each work
  };

  NcclWatcher(std::shared_ptr<Communicator> communicator, const Options& options);
  NcclWatcher(const NcclWatcher&) = delete;
  NcclWatcher& operator=(const NcclWatcher&) = delete;
  NcclWatcher(NcclWatcher&&) = delete;
  NcclWatcher& operator=(NcclWatcher&&) = delete;
  ~NcclWatcher() = default;

  void start();
  // Whatever is under way is watched no longer. Waits for the thread, for `limit` at most.
  void stop(std::chrono::milliseconds limit);
  // The communicator has failed, or a graph holds it: all who wait here shall look at it.
  void wake();

  // From now on it compares this rank with the others. Nothing is under way, and all have a board.
  void compare_over(std::unique_ptr<DesyncBoard> board);

  // An operation begins. Its number. Throws the reason after a failure. `peer`: of a transfer.
  // `parts`: LaunchRequest::hash().
  std::uint32_t begin(OperationKind kind, std::uint64_t bytes, Dtype dtype = Dtype::kUInt8,
                      int peer = -1, std::uint64_t parts = 0);
  void end(std::uint32_t operation);

  // From now on its time counts, or from when the work before it is done. kEnds: the operation ends
  // with it.
  enum class Part { kEnds, kGoesOn };
  std::shared_ptr<Work> watch(std::uint32_t operation, Part part);
  // The same with what is left of the time of the bring-up.
  std::shared_ptr<Work> watch(std::uint32_t operation, Part part, std::chrono::milliseconds limit);
  // It is in the stream, between these two. `ready`: the end of the program's work before it, if it
  // waits for that.
  void launched(Work& work, std::optional<Event> ready, Event done);

  bool over(const Work& work) const;
  // Returns when it is done. Throws the reason if it fails.
  void wait(const Work& work);
  // Returns when all is done, after a failure, or after `limit`: then false.
  bool wait_for_all(std::chrono::milliseconds limit);

  std::string flight_record() const;

  // How long it has waited for the answer of CUDA or NCCL. Any thread.
  std::chrono::milliseconds silence() const;

 private:
  using Clock = std::chrono::steady_clock;
  // CUDA or NCCL is asked, and may not answer.
  class Question;

  void run();
  bool rests() const;
  void rest(std::unique_lock<std::mutex>& lock);
  void nudge();
  void look(std::unique_lock<std::mutex>& lock);
  bool take_what_is_done(std::unique_lock<std::mutex>& lock);
  std::optional<std::string> find_failure(std::unique_lock<std::mutex>& lock);
  std::string past_deadline(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Work>& work);
  std::optional<std::string> disagreement(std::unique_lock<std::mutex>& lock);
  Clock::time_point since(const Work& work) const;
  RankReport report() const;

  const std::shared_ptr<Communicator> communicator_;
  const Options options_;
  mutable std::mutex mutex_;                 // for all below
  std::condition_variable woken_;            // the thread: something to watch
  std::condition_variable moved_;            // the program: something is over, or failed
  std::deque<std::shared_ptr<Work>> works_;  // in stream order
  std::unique_ptr<OperationRing> ring_;      // large
  std::optional<DesyncLooks> looks_;         // of the thread; nothing: ranks cannot see each other
  std::array<int, OperationRing::kLength> peers_{};  // of transfers, beside the ring
  Clock::time_point last_done_{};                    // when the work before the first of works_ was
  std::chrono::microseconds pause_{};                // between two looks
  int waiters_ = 0;                                  // of the program
  bool nudged_ = false;                              // the pause ends
  bool stopping_ = false;
  bool stopped_ = false;
  std::atomic<Clock::rep> asked_at_ = 0;  // 0: nothing is asked
};

}  // namespace ddprun::worker
