#include "agent/standby/death_watch.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <climits>
#include <csignal>
#include <optional>
#include <system_error>
#include <utility>

#include "base/new_calls.h"

namespace ddprun::agent {
namespace {

using LockWord = std::atomic<std::uint32_t>;
static_assert(sizeof(LockWord) == sizeof(std::uint32_t));

// Since Linux 5.16; Debian 12's headers of libc do not name it.
constexpr long kFutexWaitv = 449;

futex_waitv waiting_for(const LockWord& word, std::uint32_t value) {
  return {.val = value,
          .uaddr = reinterpret_cast<std::uintptr_t>(&word),
          .flags = FUTEX_32,
          .__reserved = 0};
}

// Adds a wait for each lock that has an owner. Returns the first lock whose owner has died.
//
// The kernel changes a word only if FUTEX_WAITERS is set in it (robust-futexes, the kernel's
// documentation). So we set that bit, as a waiter for the lock does.
std::optional<std::size_t> add_waits(const std::vector<LockWord*>& locks,
                                     std::vector<futex_waitv>& waits) {
  for (std::size_t i = 0; i < locks.size() && waits.size() < FUTEX_WAITV_MAX; ++i) {
    // A worker could not take a lock any more that has the bit and no owner.
    if ((locks[i]->load() & (FUTEX_TID_MASK | FUTEX_OWNER_DIED)) == 0) continue;
    const std::uint32_t value = locks[i]->fetch_or(FUTEX_WAITERS) | FUTEX_WAITERS;
    if ((value & FUTEX_OWNER_DIED) != 0) return i;
    if ((value & FUTEX_TID_MASK) != 0) waits.push_back(waiting_for(*locks[i], value));
  }
  return std::nullopt;
}

}  // namespace

DeathWatch::DeathWatch(asio::io_context& loop, DyingHandler dying)
    : loop_(loop), dying_(std::move(dying)) {}

void DeathWatch::start(std::vector<LockWord*> locks) {
  stop();
  if (!has_call(NewCall::kFutexWaitv)) return;
  stopped_ = 0;
  // Signals belong to the loop's thread; the new one inherits the mask.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ =
        std::thread([this, watched = std::move(locks), watch = ++watch_] { run(watched, watch); });
  } catch (const std::system_error&) {
    // No thread can be made. Then nothing is noticed early.
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void DeathWatch::stop() {
  ++watch_;
  if (!thread_.joinable()) return;
  stopped_ = 1;
  ::syscall(SYS_futex, &stopped_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  thread_.join();
}

void DeathWatch::run(const std::vector<LockWord*>& locks, unsigned watch) {
  while (stopped_ == 0) {
    std::vector<futex_waitv> waits = {waiting_for(stopped_, 0)};
    if (const auto died = add_waits(locks, waits)) {
      asio::post(loop_, [this, rank = static_cast<int>(*died), watch, noticed = now()] {
        if (watch == watch_) dying_(rank, noticed);
      });
      return;
    }
    // EAGAIN: a word has changed meanwhile. EINTR cannot be, all signals are blocked.
    const long woken = ::syscall(kFutexWaitv, waits.data(), waits.size(), 0, nullptr, 0);
    if (woken < 0 && errno != EAGAIN) return;
  }
}

}  // namespace ddprun::agent
