// One NCCL communicator, and why it has failed. A communicator is not thread-safe, and both the
// program and the watcher use it. So calls take turns, and no two run at once. At the first failure
// all who wait are told the reason. Then a thread of its own aborts the communicator, which may
// take for ever. The abort ends the kernels that wait for a peer. With them ends the wait of a host
// for its stream. Any thread. A shared pointer owns it: the collective, its registered memory, and
// the thread that aborts.
#pragma once

#include <nccl.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "worker/collective/nccl/nccl_optional.h"

namespace ddprun::worker {

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  // Numbers of GPUs: that of the communicator, and the one whose communicators fail with it.
  struct Gpus {
    int own;
    int fails_with;
  };
  // `abort_limit`: the most time in which leave() waits for an abort.
  Communicator(int rank, Gpus gpus, const NcclOptional& optional,
               std::chrono::milliseconds abort_limit)
      : rank_(rank), gpus_(gpus), optional_(optional), abort_limit_(abort_limit) {}

  // Called once at the first failure, on any thread, when check() throws the reason. Set before
  // form().
  void on_failure(std::function<void()> tell) { tell_ = std::move(tell); }

  // All ranks must call it. Throws CollectiveError if they are not together after `limit`.
  void form(const ncclUniqueId& id, int ranks, std::chrono::milliseconds limit);

  // Makes a communicator of each group of ranks, out of this one. All ranks must call it, and no
  // other call may be under way. Null where `color` is negative. Throws as run() does. Only if
  // NcclOptional has `split`.
  ncclComm_t split(int color, int key);
  // This is a group of `ranks` from split() from now on. Throws as form() does.
  void adopt(ncclComm_t group, int ranks, std::chrono::milliseconds limit);

  // Makes one call, and returns when NCCL has taken it. That takes microseconds, but for the first
  // one, which connects the ranks. Throws CollectiveError if it fails, or if fail() is called
  // meanwhile: somebody must watch the time. `doing`: the middle of "rank 0: <doing>: NCCL: …".
  using Call = std::function<ncclResult_t(ncclComm_t)>;
  void run(const char* doing, const Call& call);

  // Returns the fault that NCCL has found since. Nothing if all is well, if it has failed before,
  // or while a call is under way.
  std::optional<std::string> trouble();

  // The first reason counts. Afterwards every call throws it. Returns at once: a thread of its own
  // revokes and aborts the communicator. The others of this process on the same GPU fail with it.
  // Else the abort of one could wait for the kernels of another. So do those of on_gpu().
  void fail(const std::string& why) noexcept;
  // The same for this one alone, since the program needs it no more.
  void give_up() noexcept;
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  void check() const;  // throws the reason

  // Return whether that came within `limit`. It has ended when its abort is over, or leave() is.
  bool wait_for_failure_or_end(std::chrono::milliseconds limit);
  bool wait_for_end(std::chrono::milliseconds limit);
  bool given_up() const { return given_up_; }

  // A graph has an operation of it until the last copy of this is gone. NCCL ends no communicator
  // before.
  std::shared_ptr<void> in_a_graph();
  bool is_in_graphs() const { return in_graphs_ > 0; }

  // Registers memory: NCCL then need not copy it. A handle for remove(). Throws as run() does.
  void* add(void* memory, std::size_t bytes);
  // The same; a refusal of NCCL's is no failure of the communicator.
  ncclResult_t try_add(void* memory, std::size_t bytes, void** handle);
  void remove(void* handle) noexcept;  // does nothing once the communicator is gone

  // Removes what is registered. Ends the communicator well if all ranks do so within `limit`; else
  // aborts. An abort that hangs leaves things behind, for as long as the process.
  void leave(std::chrono::milliseconds limit) noexcept;

 private:
  class Turn;

  ncclResult_t state() const;  // in a turn
  std::string words_of(ncclResult_t error) const;
  void settle(const char* doing);
  void wait_until_formed(int ranks, std::chrono::milliseconds limit);
  bool end_well(std::chrono::milliseconds limit);
  void fail_alone(const std::string& why) noexcept;
  void end_failed() noexcept;
  void abort() noexcept;
  bool stay_for_graphs();

  const int rank_;
  const Gpus gpus_;
  const NcclOptional optional_;
  std::function<void()> tell_;
  const std::chrono::milliseconds abort_limit_;
  std::atomic<bool> failed_ = false;
  std::atomic<bool> given_up_ = false;
  std::atomic<bool> formed_ = false;
  std::atomic<int> in_graphs_ = 0;  // operations
  mutable std::mutex mutex_;        // for all below; never held during a call
  std::condition_variable changed_;
  bool in_call_ = false;
  bool ended_ = false;
  std::string reason_;
  ncclComm_t comm_ = nullptr;   // for the one who has the turn
  ncclComm_t group_ = nullptr;  // of the latest split; NCCL's own thread writes it
  std::set<void*> registered_;  // handles; likewise
};

}  // namespace ddprun::worker
