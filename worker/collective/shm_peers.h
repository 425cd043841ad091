// Waiting for the other ranks of this host: counters in shared memory, a short spin, then the
// kernel's futex; and never for ever: a peer that died, an abort by another rank, or a passed
// deadline ends every wait with an error that names the rank. Holds the control segment and one
// pidfd per peer. One thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "worker/collective/shm_layout.h"
#include "worker/collective/shm_segment.h"

namespace ddprun::worker {

// So often a wait looks whether the peer has died or the deadline has passed, however often it is
// woken in between, by signals for example.
inline constexpr std::chrono::milliseconds kWaitSlice{100};

// Busy waiting before sleeping, when every local rank can have a core: longer than a peer that is
// merely a little late, far shorter than a time slice.
inline constexpr std::chrono::nanoseconds kSpin{20'000};

// Busy waiting only pays while the peer runs at the same time. After so many vain spins in a row
// waits sleep at once (other jobs have the cores, or ranks take unequal time), but every
// kSpinProbe-th tries again.
inline constexpr unsigned kVainSpinsMax = 2;
inline constexpr unsigned kSpinProbe = 64;

// Sets `counter` to `value` and wakes who sleeps on it. Everything written before is visible to who
// sees the value.
void advance(Counter& counter, std::uint32_t value);

class ShmPeers {
 public:
  struct Options {
    int rank = 0;
    int ranks = 1;
    std::chrono::milliseconds timeout{};  // of one wait
  };

  // Takes over the mapped control segment and signs in: from now on peers can see this process die.
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
  std::byte* staging(std::size_t rank, std::uint32_t slot) const {
    return view_.staging(rank, slot);
  }
  ShmSegment& control() { return control_; }

  // Whether `counter` of every rank has reached `target`; does not wait.
  bool all_reached(Counter RankArea::*counter, std::uint32_t target) const;

  // Waits for one rank or for all. `doing` completes "rank 0: <doing>: rank 1 …". Throws
  // CollectiveError.
  void wait_for(std::size_t peer, Counter RankArea::*counter, std::uint32_t target,
                const char* doing);
  void wait_for_all(Counter RankArea::*counter, std::uint32_t target, const char* doing);

  // Ends the collective for all ranks: whoever waits or will wait throws with this reason. Throws
  // CollectiveError here.
  [[noreturn]] void abort(const std::string& why);

 private:
  bool worth_spinning();
  bool spin(const Counter& counter, std::uint32_t target);
  void sleep(Counter& counter, std::uint32_t target, std::chrono::nanoseconds limit) const;
  struct Wait {
    const char* doing;
    std::chrono::steady_clock::time_point deadline;
  };
  void check_peer(std::size_t peer, const Counter& awaited, std::uint32_t target, const Wait& wait);
  bool died(std::size_t peer);
  void throw_if_aborted() const;
  void wake_everybody() const;

  ShmSegment control_;
  ControlView view_;
  std::size_t rank_;
  std::chrono::milliseconds timeout_;
  std::chrono::milliseconds slice_;
  bool may_spin_;            // every local rank can have a core
  unsigned vain_spins_ = 0;  // in a row
  unsigned unspun_ = 0;      // waits that slept at once since the last try
  std::vector<int> pidfds_;  // by rank; -1: not opened yet, or not possible here
};

}  // namespace ddprun::worker
