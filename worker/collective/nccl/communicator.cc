#include "worker/collective/nccl/communicator.h"

#include <ddprun/collective.h>
#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "base/blocking_wait.h"
#include "base/duration.h"

namespace ddprun::worker {
namespace {

using Clock = std::chrono::steady_clock;

// A launch is taken within microseconds, so we look again at once for so long. Later looks are
// rare: a peer is late.
constexpr std::chrono::microseconds kBusyLooks{200};
constexpr std::chrono::microseconds kFirstPause{20};
constexpr std::chrono::microseconds kLongestPause{1000};

// A revoke that is not over by then does not end what hangs.
constexpr std::chrono::seconds kRevokeLimit{2};

// Between two looks at the communicator.
class Pauses {
 public:
  void take() {
    if (Clock::now() - began_ < kBusyLooks) return std::this_thread::yield();
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(pause_ * 2, kLongestPause);
  }

 private:
  Clock::time_point began_ = Clock::now();
  std::chrono::microseconds pause_ = kFirstPause;
};

}  // namespace

Communicator::~Communicator() {
  const std::lock_guard lock(mutex_);
  end_now();
}

ncclResult_t Communicator::state() const {
  ncclResult_t async = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_, &async);
  return asked == ncclSuccess ? async : asked;
}

// Non-blocking: a call answers at once, and the program can end what does not come to an end.
void Communicator::form(const ncclUniqueId& id, int ranks, std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  {
    const std::lock_guard lock(mutex_);
    const ncclResult_t begun = ncclCommInitRankConfig(&comm_, ranks, id, rank_, &config);
    if (begun != ncclSuccess && begun != ncclInProgress)
      throw CollectiveError(
          fmt::format("rank {}: NCCL bring-up: {}", rank_, ncclGetErrorString(begun)));
  }
  BlockingWait wait;
  for (Pauses pauses;; pauses.take()) {
    if (const auto wrong = trouble()) {
      fail(fmt::format("rank {}: NCCL bring-up: {}", rank_, *wrong));
      check();
    }
    wait.tell([&] {
      return fmt::format("rank {} of {}: NCCL bring-up: not complete yet", rank_, ranks);
    });
    const std::lock_guard lock(mutex_);
    if (state() == ncclSuccess) return;
    if (Clock::now() < deadline) continue;
    throw CollectiveError(fmt::format(
        "rank {}: NCCL bring-up: not complete after {} s: another rank has not come, or the "
        "transport hangs (NCCL_DEBUG=INFO says more)",
        rank_, in_seconds(limit)));
  }
}

void Communicator::run(const char* doing, const Call& call) {
  check();
  std::unique_lock lock(mutex_);
  if (comm_ == nullptr) {
    lock.unlock();
    check();
    throw CollectiveError("the communicator has ended");
  }
  const ncclResult_t result = call(comm_);
  lock.unlock();
  if (result != ncclSuccess && result != ncclInProgress)
    fail(fmt::format("rank {}: {}: NCCL: {}", rank_, doing, ncclGetErrorString(result)));
  settle(doing);
}

// A non-blocking communicator answers ncclInProgress. Until that has changed, no other NCCL call on
// it is allowed (NCCL user guide, ncclCommGetAsyncError).
void Communicator::settle(const char* doing) {
  for (Pauses pauses;; pauses.take()) {
    check();
    if (const auto wrong = trouble()) {
      fail(fmt::format("rank {}: {}: {}", rank_, doing, *wrong));
      continue;
    }
    const std::lock_guard lock(mutex_);
    if (comm_ != nullptr && state() == ncclSuccess) return;
  }
}

std::optional<std::string> Communicator::trouble() {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return std::nullopt;
  const ncclResult_t now = state();
  if (now == ncclSuccess || now == ncclInProgress) return std::nullopt;
  return fmt::format("NCCL: {}: {}", ncclGetErrorString(now), ncclGetLastError(comm_));
}

// First the reason, then the abort: a host that the abort lets go on must find it.
void Communicator::fail(const std::string& why) noexcept {
  {
    const std::lock_guard lock(reason_mutex_);
    if (failed_.load(std::memory_order_relaxed)) return;
    reason_ = why;
    failed_.store(true, std::memory_order_release);
  }
  const std::lock_guard lock(mutex_);
  end_now();
}

void Communicator::check() const {
  if (!failed()) return;
  const std::lock_guard lock(reason_mutex_);
  throw CollectiveError(reason_);
}

// A revoke stops the kernels without tearing down what the peers still use; the abort frees all. A
// revoke that fails, or hangs, changes nothing about the abort.
void Communicator::end_now() noexcept {
  if (comm_ == nullptr) return;
  if (optional_.revoke != nullptr) {
    ncclResult_t revoked = optional_.revoke(comm_, 0);
    const auto deadline = Clock::now() + kRevokeLimit;
    for (Pauses pauses; revoked == ncclInProgress && Clock::now() < deadline; pauses.take())
      revoked = state();
  }
  ncclCommAbort(comm_);
  comm_ = nullptr;
}

void* Communicator::add(void* memory, std::size_t bytes) {
  void* handle = nullptr;
  const ncclResult_t added = try_add(memory, bytes, &handle);
  if (added == ncclSuccess) return handle;
  fail(fmt::format("rank {}: register memory: NCCL: {}", rank_, ncclGetErrorString(added)));
  check();
  return nullptr;
}

ncclResult_t Communicator::try_add(void* memory, std::size_t bytes, void** handle) {
  check();
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return ncclInvalidUsage;
  const ncclResult_t added = optional_.add(comm_, memory, bytes, handle);
  // Null with NCCL_LOCAL_REGISTER=0: nothing was registered.
  if (added == ncclSuccess && *handle != nullptr) registered_.insert(*handle);
  return added;
}

void Communicator::remove(void* handle) noexcept {
  const std::lock_guard lock(mutex_);
  if (comm_ != nullptr && registered_.erase(handle) != 0) optional_.remove(comm_, handle);
}

void Communicator::leave(std::chrono::milliseconds limit) noexcept {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return;
  for (void* handle : registered_) optional_.remove(comm_, handle);
  registered_.clear();
  ncclResult_t farewell = ncclCommFinalize(comm_);
  const auto deadline = Clock::now() + limit;
  for (Pauses pauses; farewell == ncclInProgress && Clock::now() < deadline; pauses.take())
    farewell = state();
  if (farewell != ncclSuccess) return end_now();
  ncclCommDestroy(comm_);
  comm_ = nullptr;
}

}  // namespace ddprun::worker
