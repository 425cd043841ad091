#include "worker/collective/shm_peers.h"

#include <fmt/format.h>
#include <immintrin.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <utility>

namespace ddprun::worker {
namespace {

using Clock = std::chrono::steady_clock;

// Values of Header::aborted. Two steps, so that nobody reads half a reason.
constexpr std::uint32_t kAbortClaimed = 1;
constexpr std::uint32_t kAbortPublished = 2;

// Spins between two looks at the clock. One look costs about as much as so many pauses.
constexpr int kPausesPerLook = 8;

std::uint32_t* address(std::atomic<std::uint32_t>& counter) {
  return reinterpret_cast<std::uint32_t*>(&counter);
}

// Sleeps while the counter is `seen`. Ends by a wake, after `limit`, at a signal, or without a
// reason (futex(2)), so the caller must look at the counter again. Without FUTEX_PRIVATE_FLAG,
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

// Cores that this process may run on: under taskset and in some containers not all of the host's.
int usable_cores() {
  cpu_set_t cores;
  return ::sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

// What a rank can wait for, in the order of Waiting::counter.
constexpr std::array kCounters{&RankArea::launched, &RankArea::summed, &RankArea::posted,
                               &RankArea::taken};

std::uint32_t place_of(Counter RankArea::*counter) {
  return static_cast<std::uint32_t>(std::ranges::find(kCounters, counter) - kCounters.begin());
}

// Says that this rank waits, as long as it lives.
class WaitingMark {
 public:
  WaitingMark(Waiting& waiting, std::size_t peer, std::uint32_t counter, std::uint32_t target,
              std::uint32_t operation)
      : waiting_(waiting) {
    waiting_.peer.store(static_cast<std::uint32_t>(peer));
    waiting_.counter.store(counter);
    waiting_.target.store(target);
    waiting_.operation.store(operation);
    waiting_.sequence.fetch_add(1);
  }
  WaitingMark(const WaitingMark&) = delete;
  WaitingMark& operator=(const WaitingMark&) = delete;
  WaitingMark(WaitingMark&&) = delete;
  WaitingMark& operator=(WaitingMark&&) = delete;
  ~WaitingMark() { waiting_.sequence.fetch_add(1); }

 private:
  Waiting& waiting_;
};

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

void ShmPeers::wait_for_all(Counter RankArea::*counter, std::uint32_t target, Doing doing) {
  for (std::size_t peer = 0; peer < ranks(); ++peer) wait_for(peer, counter, target, doing);
}

void ShmPeers::wait_for(std::size_t peer, Counter RankArea::*counter, std::uint32_t target,
                        Doing doing) {
  Counter& awaited = area(peer).*counter;
  if (reached(awaited.value.load(std::memory_order_acquire), target)) return;
  if (worth_spinning() && spin(awaited, target)) return;
  const WaitingMark mark(mine().waiting, peer, place_of(counter), target, doing.operation);
  wait_asleep(peer, awaited, target, doing);
}

void ShmPeers::wait_asleep(std::size_t peer, Counter& awaited, std::uint32_t target, Doing doing) {
  auto now = Clock::now();
  const auto deadline = now + timeout_;
  auto next_look = now + slice_;
  while (!reached(awaited.value.load(std::memory_order_acquire), target)) {
    throw_if_aborted();
    sleep(awaited, target, next_look - now);
    // The clock decides, not what ended the sleep: signals can come more often than slices end.
    now = Clock::now();
    if (now < next_look) continue;
    check_peer(peer, awaited, target, {doing, deadline});
    next_look = now + slice_;
  }
}

// A slice has passed and the value has not come. Aborts if it cannot come any more, or not in time.
void ShmPeers::check_peer(std::size_t peer, const Counter& awaited, std::uint32_t target,
                          const Wait& wait) {
  // Look for death first, at the counter second: what a peer did before it died counts.
  const bool dead = died(peer);
  if (reached(awaited.value.load(std::memory_order_acquire), target)) return;
  throw_if_aborted();  // it says why a peer has ended since
  if (dead) {
    abort(fmt::format("rank {}: {}: rank {} (pid {}) has ended", rank_, wait.doing.what, peer,
                      area(peer).pid.load()));
  }
  std::string circle;
  for (const Look& look : ranks_in_a_circle()) {
    const auto operation = area(look.rank).operations.find(look.operation);
    circle += fmt::format("{}rank {} waits in {} for rank {}", circle.empty() ? "" : ", ",
                          look.rank, operation ? describe(*operation) : "an operation", look.peer);
  }
  if (!circle.empty()) abort(circle + ": they do different things, and none of them can go on");
  if (Clock::now() >= wait.deadline) {
    abort(fmt::format("rank {}: {}: rank {} did not come within {} s; {}", rank_, wait.doing.what,
                      peer, std::chrono::duration<double>(timeout_).count(),
                      last_operation_of(peer)));
  }
}

// Nothing: it does not wait, or what it waits for is there.
std::optional<ShmPeers::Look> ShmPeers::look_at_wait(std::size_t rank) const {
  const Waiting& waiting = area(rank).waiting;
  const std::uint32_t sequence = waiting.sequence.load();
  const std::uint32_t peer = waiting.peer.load();
  const std::uint32_t counter = waiting.counter.load();
  const std::uint32_t target = waiting.target.load();
  const std::uint32_t operation = waiting.operation.load();
  const bool whole = sequence % 2 == 1 && waiting.sequence.load() == sequence;
  if (!whole || peer >= ranks() || counter >= kCounters.size()) return std::nullopt;
  if (reached((area(peer).*kCounters.at(counter)).value.load(), target)) return std::nullopt;
  return Look{.rank = rank, .sequence = sequence, .peer = peer, .operation = operation};
}

// A rank that waits moves none of its counters. So ranks that wait for one another in a circle wait for
// ever. Each was seen at another moment: a second look that finds the same waits shows that all of them
// waited at once. The lowest rank comes first. Empty: this rank is in no circle.
std::vector<ShmPeers::Look> ShmPeers::ranks_in_a_circle() const {
  std::vector<Look> circle;
  for (std::size_t next = rank_; circle.empty() || next != rank_; next = circle.back().peer) {
    const auto look = look_at_wait(next);
    // Longer than there are ranks: a circle of others, which they will find.
    if (!look || circle.size() == ranks()) return {};
    circle.push_back(*look);
  }
  for (const Look& first : circle) {
    const auto second = look_at_wait(first.rank);
    if (!second || second->sequence != first.sequence) return {};
  }
  std::ranges::rotate(circle, std::ranges::min_element(circle, {}, &Look::rank));
  return circle;
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

std::string ShmPeers::compare(std::size_t peer, std::uint32_t operation) const {
  const auto said = [&](std::size_t rank) {
    const auto found = area(rank).operations.find(operation);
    return fmt::format("rank {} does {}", rank, found ? describe(*found) : "another operation");
  };
  return said(rank_) + ", " + said(peer);
}

// Never if ranks share cores: a rank that spins then takes the time that its peer needs.
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

// The kernel compares the counter with `seen` before it sleeps, so that a value that comes in
// between is not missed. An abort that comes in between is: it is seen at the end of the slice.
void ShmPeers::sleep(Counter& counter, std::uint32_t target, std::chrono::nanoseconds limit) const {
  counter.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const std::uint32_t seen = counter.value.load(std::memory_order_seq_cst);
  const bool aborted = view_.header().aborted.load(std::memory_order_seq_cst) != 0;
  if (!reached(seen, target) && !aborted) futex_wait(counter.value, seen, limit);
  counter.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

// Opens the peer's pidfd at the first look. If the peer has died before and its pid is in use
// again, the pidfd is a stranger's; then only the deadline ends the wait.
bool ShmPeers::died(std::size_t peer) {
  const pid_t pid = area(peer).pid.load(std::memory_order_acquire);
  // A peer that has not signed in yet has no pid here: only the deadline can tell.
  if (pid == 0 || peer == rank_) return false;
  int& pidfd = pidfds_[peer];
  if (pidfd < 0) {
    // By its number: <sys/pidfd.h> of glibc 2.36 declares pidfd_open without C linkage.
    pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
    // ESRCH: it is gone. After other errors (a sandbox without this call) the deadline remains.
    if (pidfd < 0) return errno == ESRCH;
  }
  pollfd ended{.fd = pidfd, .events = POLLIN, .revents = 0};
  // A pidfd is readable once its process is a zombie or gone (pidfd_open(2)).
  return ::poll(&ended, 1, 0) == 1;
}

void ShmPeers::throw_if_aborted() const {
  const Header& header = view_.header();
  const std::uint32_t state = header.aborted.load(std::memory_order_acquire);
  if (state == kAbortPublished) throw CollectiveError(header.reason.data());
  // Another rank writes the reason at this moment, or it died meanwhile: we do not wait for it.
  if (state == kAbortClaimed) throw CollectiveError("the collective was aborted by another rank");
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
    for (const auto counter : kCounters) futex_wake((woken.*counter).value);
  }
}

}  // namespace ddprun::worker
