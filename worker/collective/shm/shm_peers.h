// Waits for the other ranks of this host. A rank waits for a counter in shared memory. First it
// spins for a short time, then it sleeps in the kernel (futex(2)). No wait is for ever. A peer that
// died or left, another rank's abort or a passed deadline ends it. The error names the rank. Ranks
// that wait for each other, since they do different things, end at the next look. Owns the control
// segment and one pidfd per peer. ShmCollective owns it. One thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "worker/collective/shm/shm_layout.h"
#include "worker/collective/shm/shm_segment.h"

namespace ddprun::worker {

// A waiting rank looks so often. The peer may have died, ranks may wait in a cycle, or the
// deadline may have passed. Signals and other wake-ups in between change nothing about that. A
// death is noticed within 5 ms so. The kernel takes longer to end a process of LibTorch's size. A
// look costs two system calls and a wake-up, 50 to 70 µs of CPU time in a virtual machine. That is
// 1 to 2 % of a core that has nothing else to do. 1 ms would cost 4 %, and no run ends sooner for
// it. If several ranks share a core, each looks so many times less often, and all looks together
// cost no more.
inline constexpr std::chrono::milliseconds kWaitSlice{4};

// A rank spins so long before it sleeps, if every rank can have a core. Longer than the usual delay
// of a peer; far shorter than a time slice of the scheduler.
inline constexpr std::chrono::nanoseconds kSpin{100'000};

// The time that ranks may be apart when they add one large sum. A look at the deadline, or for a
// death, is late by it.
inline constexpr std::chrono::nanoseconds kAtWorkMax{1'000'000};

// Spinning pays only while the peer runs at the same time. It does not if other jobs have the
// cores, or if ranks need unequal time. After kVainSpinsMax vain spins in a row, waits sleep at
// once; but every kSpinProbe-th wait tries to spin again.
inline constexpr unsigned kVainSpinsMax = 2;
inline constexpr unsigned kSpinProbe = 64;

// Sets `counter` to `value` and wakes the processes that sleep on it. A rank that sees the value
// also sees everything that the caller wrote before.
void advance(Counter& counter, std::uint32_t value);

class ShmPeers {
 public:
  struct Options {
    int rank = 0;
    int ranks = 1;
    std::chrono::milliseconds timeout{};  // of one wait
  };

  // Takes over the mapped control segment and writes this process's pid into it. From then on peers
  // of its pid namespace can see this process die. For those of another one only the deadline
  // decides.
  ShmPeers(ShmSegment control, const Options& options);
  ShmPeers(const ShmPeers&) = delete;
  ShmPeers& operator=(const ShmPeers&) = delete;
  ShmPeers(ShmPeers&&) = delete;
  ShmPeers& operator=(ShmPeers&&) = delete;
  ~ShmPeers();

  std::size_t rank() const { return rank_; }
  std::size_t ranks() const { return view_.ranks; }
  RankArea& mine() const { return view_.area(rank_); }
  RankArea& area(std::size_t rank) const { return view_.area(rank); }
  const ControlView& view() const { return view_; }
  ShmSegment& control() { return control_; }

  // Returns whether `counter` of every rank has reached `target`. Does not wait.
  bool all_reached(Counter RankArea::*counter, std::uint32_t target) const;

  // How long waits may last together.
  struct Limit {
    std::chrono::milliseconds length;
    std::chrono::steady_clock::time_point deadline;
  };
  static Limit limit_from_now(std::chrono::milliseconds length) {
    return {length, std::chrono::steady_clock::now() + length};
  }

  // The middle of the error line "rank 0: <what>: rank 1 …", and the operation's number in the
  // ring.
  struct Doing {
    const char* what;
    std::uint32_t operation;
    // Past the limit the line names all that have not come.
    bool names_all = false;
    // Nothing if each wait may last as long as Options say.
    std::optional<Limit> limit = std::nullopt;
    // The peer may be at work on what is awaited, and be later by so much: worth a longer spin. At
    // most kAtWorkMax counts.
    std::chrono::nanoseconds at_work{0};
  };

  std::chrono::milliseconds timeout() const { return timeout_; }

  // Wait until `counter` of one rank, or of all ranks, has reached `target`. Throw CollectiveError
  // if the peer has died, or does not come in time. Also if it waits itself for something that
  // cannot come, or any rank has called abort().
  void wait_for(std::size_t peer, Counter RankArea::*counter, std::uint32_t target, Doing doing);
  void wait_for_all(Counter RankArea::*counter, std::uint32_t target, Doing doing);

  // One step of a reset: returns when all ranks have taken it. At the first step a rank that waits
  // for anything else throws CollectiveError. The error says that this rank has called reset().
  void take_reset_step();

  // Ends the collective for all ranks. Each rank that must wait, now or later, throws with the
  // reason of the first abort. The caller gets a CollectiveError with its own `why`.
  [[noreturn]] void abort(const std::string& why);

 private:
  // How spinning has paid so far, for one kind of waits.
  struct Spins {
    unsigned vain = 0;    // in a row
    unsigned unspun = 0;  // waits that slept at once
  };
  bool worth_spinning(Spins& spins) const;
  static bool spin(const Counter& counter, std::uint32_t target, std::chrono::nanoseconds length,
                   Spins& spins);
  void sleep(Counter& counter, std::uint32_t target, std::chrono::nanoseconds limit) const;
  struct Wait {
    Doing doing;
    Limit limit;
  };
  void wait_asleep(std::size_t peer, Counter RankArea::*counter, std::uint32_t target, Doing doing);
  void check_peer(std::size_t peer, Counter RankArea::*counter, std::uint32_t target,
                  const Wait& wait);
  std::string last_operation_of(std::size_t peer) const;
  std::string own_operation(const Doing& doing) const;
  std::string late_ones(std::size_t peer, Counter RankArea::*counter, std::uint32_t target) const;
  bool died(std::size_t peer);
  void throw_if_aborted() const;
  void throw_if_reset(const Counter& awaited, std::uint32_t target) const;
  std::optional<std::size_t> who_resets() const;
  void wake_everybody() const;

  ShmSegment control_;
  ControlView view_;
  std::size_t rank_;
  std::chrono::milliseconds timeout_;
  std::chrono::milliseconds slice_;
  bool may_spin_;           // every local rank can have a core
  bool resetting_ = false;  // this rank waits in a reset
  Spins spins_;
  Spins spins_at_work_;      // of waits for ranks that may be at work
  std::vector<int> pidfds_;  // by rank; -1: not opened yet, or not possible here
};

}  // namespace ddprun::worker
