#include "worker/collective/nccl/communicator.h"

#include <ddprun/collective.h>
#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/blocking_wait.h"
#include "base/duration.h"
#include "base/log.h"
#include "worker/collective/nccl/cuda_parts.h"
#include "worker/collective/nccl/quiet_thread.h"

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

// All communicators of this process that have formed.
struct Formed {
  std::mutex mutex;
  std::vector<std::pair<int, std::weak_ptr<Communicator>>> all;  // with Gpus::fails_with

  void add(int gpu, std::weak_ptr<Communicator> communicator) {
    const std::lock_guard lock(mutex);
    std::erase_if(all, [](const auto& one) { return one.second.expired(); });
    all.emplace_back(gpu, std::move(communicator));
  }
  std::vector<std::shared_ptr<Communicator>> on(int gpu) {
    std::vector<std::shared_ptr<Communicator>> found;
    const std::lock_guard lock(mutex);
    for (const auto& [where, communicator] : all) {
      if (where == gpu) found.push_back(communicator.lock());
    }
    std::erase(found, nullptr);
    return found;
  }
};
// Threads use it until the process ends.
Formed& formed() {
  static auto* const made = new Formed;
  return *made;
}

// Non-blocking: a call answers at once, and the program can end what does not come to an end.
// `splitShare` stays 0. With it, a group's abort also ends the kernels of the ranks that it comes
// of. And the operations of all of them have one order.
ncclConfig_t our_config() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

}  // namespace

// The right to call NCCL.
class Communicator::Turn {
 public:
  // Waits for it. Throws the reason once the communicator has failed.
  explicit Turn(Communicator& of) : of_(of) {
    std::unique_lock lock(of.mutex_);
    of.changed_.wait(lock, [&] { return !of.in_call_ || of.failed(); });
    if (of.failed()) throw CollectiveError(of.reason_);
    if (of.ended_ || of.comm_ == nullptr) throw CollectiveError("the communicator has ended");
    has_it_ = of.in_call_ = true;
  }
  // Does not wait: it may have none then.
  Turn(Communicator& of, std::try_to_lock_t /*now*/) : of_(of) {
    const std::lock_guard lock(of.mutex_);
    if (of.in_call_ || of.failed() || of.ended_ || of.comm_ == nullptr) return;
    has_it_ = of.in_call_ = true;
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  Turn(Turn&&) = delete;
  Turn& operator=(Turn&&) = delete;
  ~Turn() {
    if (!has_it_) return;
    const std::lock_guard lock(of_.mutex_);
    of_.in_call_ = false;
    of_.changed_.notify_all();
  }
  explicit operator bool() const { return has_it_; }

 private:
  Communicator& of_;
  bool has_it_ = false;
};

ncclResult_t Communicator::state() const {
  ncclResult_t async = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_, &async);
  return asked == ncclSuccess ? async : asked;
}

std::string Communicator::words_of(ncclResult_t error) const {
  return fmt::format("NCCL: {}: {}", ncclGetErrorString(error), ncclGetLastError(comm_));
}

void Communicator::form(const ncclUniqueId& id, int ranks, std::chrono::milliseconds limit) {
  ncclConfig_t config = our_config();
  const ncclResult_t begun = ncclCommInitRankConfig(&comm_, ranks, id, rank_, &config);
  if (begun != ncclSuccess && begun != ncclInProgress)
    throw CollectiveError(
        fmt::format("rank {}: NCCL bring-up: {}", rank_, ncclGetErrorString(begun)));
  wait_until_formed(ranks, limit);
}

ncclComm_t Communicator::split(int color, int key) {
  ncclConfig_t config = our_config();
  group_ = nullptr;
  run("split", [&](ncclComm_t comm) {
    return optional_.split(comm, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, &group_, &config);
  });
  return std::exchange(group_, nullptr);
}

void Communicator::adopt(ncclComm_t group, int ranks, std::chrono::milliseconds limit) {
  comm_ = group;
  wait_until_formed(ranks, limit);
}

void Communicator::wait_until_formed(int ranks, std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  BlockingWait wait;
  for (Pauses pauses;; pauses.take()) {
    if (const auto wrong = trouble()) {
      fail(fmt::format("rank {}: NCCL bring-up: {}", rank_, *wrong));
      check();
    }
    wait.tell([&] {
      return fmt::format("rank {} of {}: NCCL bring-up: not complete yet", rank_, ranks);
    });
    if (const Turn turn(*this); state() == ncclSuccess) {
      formed_ = true;
      formed().add(gpus_.fails_with, weak_from_this());
      return;
    }
    if (Clock::now() < deadline) continue;
    fail(fmt::format(
        "rank {}: NCCL bring-up: not complete after {} s: another rank has not come, or the "
        "transport hangs (NCCL_DEBUG=INFO says more)",
        rank_, in_seconds(limit)));
    check();
  }
}

void Communicator::run(const char* doing, const Call& call) {
  ncclResult_t result = ncclSuccess;
  {
    const Turn turn(*this);
    result = call(comm_);
  }
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
    if (const Turn turn(*this); state() == ncclSuccess) return;
  }
}

std::optional<std::string> Communicator::trouble() {
  const Turn turn(*this, std::try_to_lock);
  if (!turn) return std::nullopt;
  const ncclResult_t now = state();
  if (now == ncclSuccess || now == ncclInProgress) return std::nullopt;
  return words_of(now);
}

void Communicator::fail(const std::string& why) noexcept {
  fail_alone(why);
  if (!formed_) return;
  for (const auto& other : formed().on(gpus_.fails_with)) other->fail_alone(why);
}

void Communicator::give_up() noexcept {
  given_up_ = !failed();
  fail_alone("the collective has ended");
}

// First the reason, then the abort: a host that the abort lets go on must find it.
void Communicator::fail_alone(const std::string& why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (failed() || ended_) return;
    reason_ = why;
    failed_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
  if (tell_) tell_();
  try {
    start_without_signals([self = shared_from_this()] { self->end_failed(); }).detach();
  } catch (const std::system_error& error) {
    log::error(fmt::format("rank {}: no thread to abort NCCL: {}", rank_, error.what()));
  }
}

bool Communicator::wait_for_failure_or_end(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [this] { return failed() || ended_; });
}

bool Communicator::wait_for_end(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [this] { return ended_; });
}

std::shared_ptr<void> Communicator::in_a_graph() {
  ++in_graphs_;
  return {nullptr, [self = shared_from_this()](void*) { --self->in_graphs_; }};
}

void Communicator::check() const {
  if (!failed()) return;
  const std::lock_guard lock(mutex_);
  throw CollectiveError(reason_);
}

// Keeps the turn until the end: nobody may call NCCL beside an abort.
void Communicator::end_failed() noexcept {
  cudaSetDevice(gpus_.own);
  const BesideCaptures beside;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !in_call_; });
    in_call_ = true;
  }
  if (comm_ != nullptr) abort();
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

// A revoke stops the kernels without tearing down what the peers still use; the abort frees all. A
// revoke that fails, or hangs, changes nothing about the abort. NCCL cannot revoke what never
// formed. An abort waits for the program's graphs. It need not be if the revoke has ended all.
void Communicator::abort() noexcept {
  ncclResult_t revoked = ncclInvalidUsage;
  if (formed_ && optional_.revoke != nullptr) {
    revoked = optional_.revoke(comm_, 0);
    const auto deadline = Clock::now() + kRevokeLimit;
    for (Pauses pauses; revoked == ncclInProgress && Clock::now() < deadline; pauses.take())
      revoked = state();
  }
  if (revoked == ncclSuccess && is_in_graphs()) return;
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
  const Turn turn(*this);
  const ncclResult_t added = optional_.add(comm_, memory, bytes, handle);
  // Null with NCCL_LOCAL_REGISTER=0: nothing was registered.
  if (added == ncclSuccess && *handle != nullptr) registered_.insert(*handle);
  return added;
}

void Communicator::remove(void* handle) noexcept {
  try {
    const Turn turn(*this);
    if (registered_.erase(handle) != 0) optional_.remove(comm_, handle);
  } catch (const CollectiveError&) {  // NOLINT(bugprone-empty-catch): it has failed, or ended
  }
}

void Communicator::leave(std::chrono::milliseconds limit) noexcept {
  try {
    if (stay_for_graphs() || end_well(limit)) return;
  } catch (const CollectiveError&) {  // NOLINT(bugprone-empty-catch): it has failed, or ended
  }
  give_up();
  wait_for_end(abort_limit_);
}

bool Communicator::stay_for_graphs() {
  const Turn turn(*this);
  if (!is_in_graphs()) return false;
  log::warning(fmt::format(
      "rank {}: the collective goes while CUDA graphs hold {} of its operations: its memory stays "
      "until the process ends. Destroy the graphs first",
      rank_, in_graphs_.load()));
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
  return true;
}

bool Communicator::end_well(std::chrono::milliseconds limit) {
  const Turn turn(*this);
  if (!formed_) return false;
  for (void* handle : registered_) optional_.remove(comm_, handle);
  registered_.clear();
  ncclResult_t farewell = ncclCommFinalize(comm_);
  const auto deadline = Clock::now() + limit;
  for (Pauses pauses; farewell == ncclInProgress && !failed() && Clock::now() < deadline;
       pauses.take())
    farewell = state();
  if (farewell != ncclSuccess) return false;
  ncclCommDestroy(comm_);
  comm_ = nullptr;
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
  return true;
}

}  // namespace ddprun::worker
