// Finds ranks that wait for each other in a cycle. A rank that waits moves none of its counters,
// so they wait for ever: they do different things. Reads the control segment and waits for nothing;
// the ranks go on meanwhile.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/collective/shm/shm_layout.h"

namespace ddprun::worker {

// Says in the control segment that this rank waits, as long as it lives.
class WaitingMark {
 public:
  WaitingMark(Waiting& waiting, std::size_t peer, Counter RankArea::*counter, std::uint32_t target,
              std::uint32_t operation);
  WaitingMark(const WaitingMark&) = delete;
  WaitingMark& operator=(const WaitingMark&) = delete;
  WaitingMark(WaitingMark&&) = delete;
  WaitingMark& operator=(WaitingMark&&) = delete;
  ~WaitingMark() { waiting_.sequence.fetch_add(1); }

 private:
  Waiting& waiting_;
};

// One look at a rank that waits for a counter that is not there yet.
struct WaitLook {
  std::size_t rank;
  std::uint32_t sequence;
  std::uint32_t peer;
  std::uint32_t operation;
};

// The ranks that wait in a cycle with `rank`, the lowest one first. Empty if it is in no cycle.
// Each was seen at another moment, so ask still_wait() before you believe it.
std::vector<WaitLook> cycle_of(const ControlView& view, std::size_t rank);

// A second look at all of them finds the same waits. Then all of them waited at once, and for ever.
bool still_wait(const ControlView& view, const std::vector<WaitLook>& cycle);

// "rank 0 waits in barrier (operation 7) for rank 1, rank 1 waits in … for rank 0: …".
std::string describe(const ControlView& view, const std::vector<WaitLook>& cycle);

}  // namespace ddprun::worker
