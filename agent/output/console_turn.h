// Whose turn it is to write to a console. It is free but for a line too long to be written in one
// piece: its stream then has the turn until the line ends, or until it stalls. Pure; one per
// console.
#pragma once

#include <chrono>

#include "agent/core/clock.h"

namespace ddprun::agent {

// A stream that writes nothing for so long in the middle of a line lets the others go on.
inline constexpr std::chrono::seconds kTurnStall{1};

class ConsoleTurn {
 public:
  bool is_free_for(const void* stream) const { return holder_ == nullptr || holder_ == stream; }
  bool is_held_by(const void* stream) const { return stream != nullptr && holder_ == stream; }

  // Takes the turn, or keeps it. It must be free for `stream`.
  void hold(const void* stream, Time now) {
    holder_ = stream;
    stalled_at_ = now + kTurnStall;
  }
  // True if `stream` had the turn: others may be waiting.
  bool release(const void* stream) {
    if (!is_held_by(stream)) return false;
    holder_ = nullptr;
    stalled_at_ = Time::max();
    return true;
  }
  // When its holder counts as stalled; Time::max() while the turn is free.
  Time stalled_at() const { return stalled_at_; }

 private:
  const void* holder_ = nullptr;
  Time stalled_at_ = Time::max();
};

}  // namespace ddprun::agent
