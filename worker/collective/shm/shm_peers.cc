#include "worker/collective/shm/shm_peers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <utility>

#include "base/duration.h"
#include "base/process_end.h"
#include "worker/collective/core/reached.h"
#include "worker/collective/shm/shared_cores.h"
#include "worker/collective/shm/wait_cycle.h"

namespace ddprun::worker {
namespace {

using Clock = std::chrono::steady_clock;

// Values of Header::aborted. Two steps, so that nobody reads half a reason.
constexpr std::uint32_t kAbortClaimed = 1;
constexpr std::uint32_t kAbortPublished = 2;
constexpr std::chrono::milliseconds kReasonLimit{100};  // to write one

// Spins between two looks at the clock. One look costs about as much as so many pauses.
constexpr int kPausesPerLook = 8;

// Tells the processor that this thread spins.
void pause_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // `yield` takes no time on most arm64 processors
#endif
}

std::uint32_t* address(std::atomic<std::uint32_t>& counter) {
  return reinterpret_cast<std::uint32_t*>(&counter);
}

// Sleeps while the counter is `seen`. Ends by a wake, after `limit`, at a signal, or without a
// reason (futex(2)). So the caller must look at the counter again. Without FUTEX_PRIVATE_FLAG,
// which is for the threads of one process only.
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

std::chrono::milliseconds slice_of(const ShmPeers::Options& options) {
  return std::min(options.timeout, ranks_a_core(options.ranks) * kWaitSlice);
}

// 0: it cannot be known.
std::uint64_t own_pid_namespace() {
  struct stat status {};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

}  // namespace

void advance(Counter& counter, std::uint32_t value) {
  // We write the value first and read `sleepers` second. A sleeper counts itself first and reads
  // the value second (sleep()). With sequential consistency one of the two sees the other. A weaker
  // order would lose wake-ups.
  counter.value.store(value, std::memory_order_seq_cst);
  if (counter.sleepers.load(std::memory_order_seq_cst) != 0) futex_wake(counter.value);
}

ShmPeers::ShmPeers(ShmSegment control, const Options& options)
    : control_(std::move(control)),
      view_{control_.data(), static_cast<std::size_t>(options.ranks)},
      rank_(static_cast<std::size_t>(options.rank)),
      timeout_(options.timeout),
      slice_(slice_of(options)),
      may_spin_(ranks_a_core(options.ranks) <= 1),
      pidfds_(view_.ranks, -1) {
  mine().pid_namespace.store(own_pid_namespace(), std::memory_order_relaxed);
  mine().pid.store(::getpid(), std::memory_order_release);
}

ShmPeers::~ShmPeers() {
  mine().left.store(1, std::memory_order_release);
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

void ShmPeers::wait_for_all(Counter RankArea::*counter, std::uint32_t target, Doing doing) {
  for (std::size_t peer = 0; peer < ranks(); ++peer) wait_for(peer, counter, target, doing);
}

void ShmPeers::wait_for(std::size_t peer, Counter RankArea::*counter, std::uint32_t target,
                        Doing doing) {
  Counter& awaited = area(peer).*counter;
  if (reached(awaited.value.load(std::memory_order_acquire), target)) return;
  Spins& spins = doing.at_work.count() > 0 ? spins_at_work_ : spins_;
  const auto length = kSpin + std::min(doing.at_work, kAtWorkMax);
  if (worth_spinning(spins) && spin(awaited, target, length, spins)) return;
  const WaitingMark mark(mine().waiting, peer, counter, target, doing.operation);
  wait_asleep(peer, counter, target, doing);
}

void ShmPeers::wait_asleep(std::size_t peer, Counter RankArea::*counter, std::uint32_t target,
                           Doing doing) {
  Counter& awaited = area(peer).*counter;
  auto now = Clock::now();
  const Limit limit = doing.limit.value_or(Limit{timeout_, now + timeout_});
  auto next_look = std::min(now + slice_, limit.deadline);
  while (!reached(awaited.value.load(std::memory_order_acquire), target)) {
    throw_if_aborted();
    throw_if_reset(awaited, target);
    sleep(awaited, target, next_look - now);
    // The clock decides, not what ended the sleep: signals can come more often than slices end.
    now = Clock::now();
    if (now < next_look) continue;
    check_peer(peer, counter, target, {doing, limit});
    next_look = std::min(now + slice_, limit.deadline);
  }
}

// A slice has passed and the value has not come. Aborts if it cannot come any more, or not in time.
void ShmPeers::check_peer(std::size_t peer, Counter RankArea::*counter, std::uint32_t target,
                          const Wait& wait) {
  const Counter& awaited = area(peer).*counter;
  // Look for death first, at the counter second: what a peer did before it died counts.
  const bool dead = died(peer);
  const bool left = area(peer).left.load(std::memory_order_acquire) != 0;
  if (reached(awaited.value.load(std::memory_order_acquire), target)) return;
  throw_if_aborted();  // it says why a peer has ended since
  if (dead || left) {
    abort(fmt::format("rank {}: {}: rank {} (pid {}) has {}; {}{}", rank_, wait.doing.what, peer,
                      area(peer).pid.load(),
                      dead ? "ended" : "left: its program has destroyed its collective",
                      last_operation_of(peer), own_operation(wait.doing)));
  }
  const auto cycle = cycle_of(view_, rank_);
  if (!cycle.empty() && still_wait(view_, cycle)) abort(describe(view_, cycle));
  if (Clock::now() >= wait.limit.deadline) {
    const bool names_all = wait.doing.names_all;
    abort(fmt::format("rank {}: {}: {} did not come within {} s; {}{}{}", rank_, wait.doing.what,
                      names_all ? late_ones(peer, counter, target) : fmt::format("rank {}", peer),
                      in_seconds(wait.limit.length),
                      names_all ? fmt::format("of rank {}: ", peer) : "", last_operation_of(peer),
                      own_operation(wait.doing)));
  }
}

// "rank 3", or "ranks 1, 3": `peer` and all behind it that have not come either. Those before it
// have.
std::string ShmPeers::late_ones(std::size_t peer, Counter RankArea::*counter,
                                std::uint32_t target) const {
  std::vector<std::size_t> late{peer};
  for (std::size_t other = peer + 1; other < ranks(); ++other) {
    if (!reached((area(other).*counter).value.load(std::memory_order_acquire), target))
      late.push_back(other);
  }
  return fmt::format("rank{} {}", late.size() > 1 ? "s" : "", fmt::join(late, ", "));
}

std::string ShmPeers::last_operation_of(std::size_t peer) const {
  const auto last = area(peer).operations.last();
  if (!last) return "it has begun no operation";
  const bool done = last->done_ns != 0;
  const std::chrono::nanoseconds since(done ? last->done_ns : last->begun_ns);
  const std::chrono::duration<double> ago = Clock::now().time_since_epoch() - since;
  return fmt::format("its last operation was {}, {} {:.1f} s ago", describe(*last),
                     done ? "done" : "begun", ago.count());
}

// Nothing in a reset, which is no operation.
std::string ShmPeers::own_operation(const Doing& doing) const {
  if (resetting_) return {};
  return fmt::format("; rank {} waits in {}", rank_, mine().operations.describe(doing.operation));
}

// Never if ranks share cores: a rank that spins then takes the time that its peer needs.
bool ShmPeers::worth_spinning(Spins& spins) const {
  if (!may_spin_) return false;
  if (spins.vain < kVainSpinsMax) return true;
  return ++spins.unspun % kSpinProbe == 0;
}

bool ShmPeers::spin(const Counter& counter, std::uint32_t target, std::chrono::nanoseconds length,
                    Spins& spins) {
  const auto end = Clock::now() + length;
  do {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (reached(counter.value.load(std::memory_order_acquire), target)) {
        spins.vain = 0;
        return true;
      }
      pause_processor();
    }
  } while (Clock::now() < end);
  ++spins.vain;
  return false;
}

// The kernel compares the counter with `seen` before it sleeps. So a value that comes in between is
// not missed. An abort that comes in between is: it is seen at the end of the slice.
void ShmPeers::sleep(Counter& counter, std::uint32_t target, std::chrono::nanoseconds limit) const {
  counter.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const std::uint32_t seen = counter.value.load(std::memory_order_seq_cst);
  const bool ended =
      view_.header().aborted.load(std::memory_order_seq_cst) != 0 || who_resets().has_value();
  if (!reached(seen, target) && !ended) futex_wait(counter.value, seen, limit);
  counter.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

// Opens the peer's pidfd at the first look. If the peer has died before and its pid is in use
// again, the pidfd is another process's. Then only the deadline ends the wait.
bool ShmPeers::died(std::size_t peer) {
  const pid_t pid = area(peer).pid.load(std::memory_order_acquire);
  // A peer that has not signed in yet has no pid here: only the deadline can tell. In another pid
  // namespace (a container for each rank, with one /proc) its number is nobody's, or another
  // process's.
  const auto space = area(peer).pid_namespace.load(std::memory_order_relaxed);
  if (pid == 0 || peer == rank_ || space == 0 || space != mine().pid_namespace.load()) return false;
  int& pidfd = pidfds_[peer];
  if (pidfd < 0) {
    pidfd = open_pidfd(pid).release();
    if (pidfd < 0) return has_ended(pid);
  }
  pollfd ended{.fd = pidfd, .events = POLLIN, .revents = 0};
  // A pidfd is readable once its process is a zombie or gone (pidfd_open(2)).
  return ::poll(&ended, 1, 0) == 1;
}

// Another rank that writes the reason at this moment has done so soon, unless it died meanwhile.
void ShmPeers::throw_if_aborted() const {
  const Header& header = view_.header();
  const auto limit = Clock::now() + kReasonLimit;
  while (true) {
    const std::uint32_t state = header.aborted.load(std::memory_order_acquire);
    if (state == 0) return;
    if (state == kAbortPublished) throw CollectiveError(header.reason.data());
    if (Clock::now() >= limit) throw CollectiveError("the collective was aborted by another rank");
    ::sched_yield();
  }
}

// A rank that has taken a step more is in a reset that this one has not begun. Inside reset() a
// peer may be one step ahead; that is no reason to throw.
std::optional<std::size_t> ShmPeers::who_resets() const {
  if (resetting_) return std::nullopt;
  const std::uint32_t mine_now = mine().resets.value.load(std::memory_order_seq_cst);
  for (std::size_t peer = 0; peer < ranks(); ++peer) {
    if (!reached(mine_now, area(peer).resets.value.load(std::memory_order_seq_cst))) return peer;
  }
  return std::nullopt;
}

// Looks at the counter second: what a peer did before its reset counts.
void ShmPeers::throw_if_reset(const Counter& awaited, std::uint32_t target) const {
  const auto peer = who_resets();
  if (!peer || reached(awaited.value.load(std::memory_order_acquire), target)) return;
  throw CollectiveError(fmt::format(
      "rank {} has called reset(), so nothing of before completes: rank {} must call it, too, or "
      "end",
      *peer, rank_));
}

void ShmPeers::take_reset_step() {
  throw_if_aborted();
  const std::uint32_t step = mine().resets.value.load(std::memory_order_relaxed) + 1;
  resetting_ = true;
  advance(mine().resets, step);
  wake_everybody();
  wait_for_all(&RankArea::resets, step, {"reset", mine().operations.latest()});
  resetting_ = false;
}

// Only the first abort writes its reason. Later ones are mostly consequences of it.
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

// Wakes the waiters of all ranks' counters: after an abort no counter may ever move again.
void ShmPeers::wake_everybody() const {
  for (std::size_t peer = 0; peer < ranks(); ++peer) {
    RankArea& woken = area(peer);
    for (Counter* counter : {&woken.launched, &woken.summed, &woken.posted, &woken.taken,
                             &woken.chunks, &woken.chunks_read, &woken.resets}) {
      futex_wake(counter->value);
    }
  }
}

}  // namespace ddprun::worker
