#include "worker/collective/shm_peers.h"

#include <fmt/format.h>
#include <immintrin.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <utility>

namespace ddprun::worker {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kAbortClaimed = 1;
constexpr std::uint32_t kAbortPublished = 2;

// Between two looks at the clock, which costs about as much as that.
constexpr int kPausesPerLook = 8;

std::uint32_t* address(std::atomic<std::uint32_t>& counter) {
  return reinterpret_cast<std::uint32_t*>(&counter);
}

// Ends after `limit`, by a wake, by a signal, or for no reason: the caller looks for itself. Shared
// between processes: no FUTEX_PRIVATE_FLAG.
void futex_wait(std::atomic<std::uint32_t>& counter, std::uint32_t seen,
                std::chrono::nanoseconds limit) {
  const auto nanoseconds = std::max<std::int64_t>(limit.count(), 0);
  const timespec timeout{.tv_sec = nanoseconds / 1'000'000'000,
                         .tv_nsec = nanoseconds % 1'000'000'000};
  ::syscall(SYS_futex, address(counter), FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

void futex_wake(std::atomic<std::uint32_t>& counter) {
  ::syscall(SYS_futex, address(counter), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

int usable_cores() {
  cpu_set_t cores;
  return ::sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

}  // namespace

void advance(Counter& counter, std::uint32_t value) {
  // Sequentially consistent against the sleeper, who counts itself first and looks at the value
  // second: one of the two sees the other.
  counter.value.store(value, std::memory_order_seq_cst);
  if (counter.sleepers.load(std::memory_order_seq_cst) != 0) futex_wake(counter.value);
}

ShmPeers::ShmPeers(ShmSegment control, const Options& options)
    : control_(std::move(control)),
      view_{control_.data(), static_cast<std::size_t>(options.ranks)},
      rank_(static_cast<std::size_t>(options.rank)),
      timeout_(options.timeout),
      slice_(std::min(options.timeout, kWaitSlice)),
      may_spin_(usable_cores() >= options.ranks),
      pidfds_(view_.ranks, -1) {
  mine().pid.store(::getpid(), std::memory_order_release);
}

ShmPeers::~ShmPeers() {
  for (const int pidfd : pidfds_) {
    if (pidfd >= 0) ::close(pidfd);
  }
}

bool ShmPeers::all_reached(Counter RankArea::*counter, std::uint32_t target) const {
  for (std::size_t peer = 0; peer < ranks(); ++peer) {
    if (!reached((area(peer).*counter).value.load(std::memory_order_acquire), target)) return false;
  }
  return true;
}

void ShmPeers::wait_for_all(Counter RankArea::*counter, std::uint32_t target, const char* doing) {
  for (std::size_t peer = 0; peer < ranks(); ++peer) wait_for(peer, counter, target, doing);
}

void ShmPeers::wait_for(std::size_t peer, Counter RankArea::*counter, std::uint32_t target,
                        const char* doing) {
  Counter& awaited = area(peer).*counter;
  if (reached(awaited.value.load(std::memory_order_acquire), target)) return;
  if (worth_spinning() && spin(awaited, target)) return;
  auto now = Clock::now();
  const auto deadline = now + timeout_;
  auto next_look = now + slice_;
  while (!reached(awaited.value.load(std::memory_order_acquire), target)) {
    throw_if_aborted();
    sleep(awaited, target, next_look - now);
    // By the clock, not by what ended the sleep: signals can come more often than slices end.
    now = Clock::now();
    if (now < next_look) continue;
    check_peer(peer, awaited, target, {doing, deadline});
    next_look = now + slice_;
  }
}

// A slice has passed without the value: is there still hope?
void ShmPeers::check_peer(std::size_t peer, const Counter& awaited, std::uint32_t target,
                          const Wait& wait) {
  // Death first, the counter second: what a peer did before it died counts.
  const bool dead = died(peer);
  if (reached(awaited.value.load(std::memory_order_acquire), target)) return;
  if (dead) {
    abort(fmt::format("rank {}: {}: rank {} (pid {}) has ended", rank_, wait.doing, peer,
                      area(peer).pid.load()));
  }
  if (Clock::now() >= wait.deadline) {
    abort(fmt::format("rank {}: {}: rank {} did not come within {} s", rank_, wait.doing, peer,
                      std::chrono::duration<double>(timeout_).count()));
  }
}

bool ShmPeers::worth_spinning() {
  if (!may_spin_) return false;
  if (vain_spins_ < kVainSpinsMax) return true;
  return ++unspun_ % kSpinProbe == 0;
}

bool ShmPeers::spin(const Counter& counter, std::uint32_t target) {
  const auto end = Clock::now() + kSpin;
  do {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (reached(counter.value.load(std::memory_order_acquire), target)) {
        vain_spins_ = 0;
        return true;
      }
      _mm_pause();
    }
  } while (Clock::now() < end);
  ++vain_spins_;
  return false;
}

void ShmPeers::sleep(Counter& counter, std::uint32_t target, std::chrono::nanoseconds limit) const {
  counter.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const std::uint32_t seen = counter.value.load(std::memory_order_seq_cst);
  const bool aborted = view_.header().aborted.load(std::memory_order_seq_cst) != 0;
  if (!reached(seen, target) && !aborted) futex_wait(counter.value, seen, limit);
  counter.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

bool ShmPeers::died(std::size_t peer) {
  const pid_t pid = area(peer).pid.load(std::memory_order_acquire);
  // It has not signed in yet: only the deadline can tell.
  if (pid == 0 || peer == rank_) return false;
  int& pidfd = pidfds_[peer];
  if (pidfd < 0) {
    // By number: the header of glibc 2.36 declares pidfd_open without C linkage.
    pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
    if (pidfd < 0) return errno == ESRCH;  // other errors: no pidfds here; the deadline remains
  }
  pollfd ended{.fd = pidfd, .events = POLLIN, .revents = 0};
  return ::poll(&ended, 1, 0) == 1;  // readable once the process is gone or a zombie
}

void ShmPeers::throw_if_aborted() const {
  const Header& header = view_.header();
  const std::uint32_t state = header.aborted.load(std::memory_order_acquire);
  if (state == kAbortPublished) throw CollectiveError(header.reason.data());
  if (state == kAbortClaimed) throw CollectiveError("the collective was aborted by another rank");
}

void ShmPeers::abort(const std::string& why) {
  Header& header = view_.header();
  std::uint32_t none = 0;
  if (header.aborted.compare_exchange_strong(none, kAbortClaimed)) {
    const std::size_t length = std::min(why.size(), header.reason.size() - 1);
    std::memcpy(header.reason.data(), why.data(), length);
    header.reason[length] = '\0';
    header.aborted.store(kAbortPublished, std::memory_order_seq_cst);
    wake_everybody();
  }
  throw CollectiveError(why);
}

void ShmPeers::wake_everybody() const {
  for (std::size_t peer = 0; peer < ranks(); ++peer) {
    RankArea& woken = area(peer);
    for (Counter* counter : {&woken.launched, &woken.summed, &woken.posted, &woken.taken}) {
      futex_wake(counter->value);
    }
  }
}

}  // namespace ddprun::worker
