// One NCCL communicator, and why it has failed. A communicator is not thread-safe, and both the
// program and the watcher use it. Each call takes the same mutex, so no two run at once. After the
// first failure it is aborted, which ends the kernels that wait for a peer. With them ends the wait
// of a host for its stream. Any thread. Its owners are the collective and each memory that is
// registered with it.
#pragma once

#include <nccl.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "worker/collective/nccl/nccl_optional.h"

namespace ddprun::worker {

class Communicator {
 public:
  Communicator(int rank, const NcclOptional& optional) : rank_(rank), optional_(optional) {}
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  Communicator(Communicator&&) = delete;
  Communicator& operator=(Communicator&&) = delete;
  ~Communicator();  // aborts what leave() has not ended

  // All ranks must call it. Throws CollectiveError if they are not together after `limit`.
  void form(const ncclUniqueId& id, int ranks, std::chrono::milliseconds limit);

  // Makes one call, and returns when NCCL has taken it. That takes microseconds, but for the first
  // one, which connects the ranks. Throws CollectiveError if it fails, or if fail() is called
  // meanwhile: somebody must watch the time. `doing`: the middle of "rank 0: <doing>: NCCL: …".
  using Call = std::function<ncclResult_t(ncclComm_t)>;
  void run(const char* doing, const Call& call);

  // Returns the fault that NCCL has found since. Nothing if all is well, or if it has failed
  // before.
  std::optional<std::string> trouble();

  // The first reason counts. Afterwards every call throws it. Revokes and aborts the communicator.
  void fail(const std::string& why) noexcept;
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  void check() const;  // throws the reason

  // Registers memory: NCCL then need not copy it. A handle for remove(). Throws as run() does.
  void* add(void* memory, std::size_t bytes);
  // The same; a refusal of NCCL's is no failure of the communicator.
  ncclResult_t try_add(void* memory, std::size_t bytes, void** handle);
  void remove(void* handle) noexcept;  // does nothing once the communicator is gone

  // Removes what is registered. Ends the communicator well if all ranks do so within `limit`; else
  // aborts.
  void leave(std::chrono::milliseconds limit) noexcept;

 private:
  ncclResult_t state() const;  // with mutex_
  void settle(const char* doing);
  void end_now() noexcept;  // with mutex_

  const int rank_;
  const NcclOptional optional_;
  std::mutex mutex_;  // for each call to NCCL
  ncclComm_t comm_ = nullptr;
  std::set<void*> registered_;  // handles
  std::atomic<bool> failed_ = false;
  mutable std::mutex reason_mutex_;  // apart: an abort may take a while
  std::string reason_;
};

}  // namespace ddprun::worker
