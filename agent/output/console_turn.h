// Says which stream may write to a console. Mostly the turn is free: all streams may. A line may be
// too long to be written in one piece. Its stream then holds the turn until the line ends or the
// stream stalls. Otherwise other streams would write in the middle of the line. It has no timer:
// LogPipes looks at stalled_at(). Pure; loop's thread; each Console owns one.
#pragma once

#include <chrono>

#include "agent/core/clock.h"

namespace ddprun::agent {

// A stream that writes nothing for this long in the middle of a line loses the turn.
inline constexpr std::chrono::seconds kTurnStall{1};

class ConsoleTurn {
 public:
  bool is_free_for(const void* stream) const { return holder_ == nullptr || holder_ == stream; }
  bool is_held_by(const void* stream) const { return stream != nullptr && holder_ == stream; }

  // Takes the turn, or keeps it and starts the time of kTurnStall anew. Call only when
  // is_free_for(`stream`): it does not check, and would take the turn away from another stream.
  void hold(const void* stream, Time now) {
    holder_ = stream;
    stalled_at_ = now + kTurnStall;
  }
  // Frees the turn. Returns true if `stream` had it: then tell the streams that wait for it.
  bool release(const void* stream) {
    if (!is_held_by(stream)) return false;
    holder_ = nullptr;
    stalled_at_ = Time::max();
    return true;
  }
  // From this moment on the holder counts as stalled. Time::max() while the turn is free.
  Time stalled_at() const { return stalled_at_; }

 private:
  const void* holder_ = nullptr;  // only compared, never used as a pointer
  Time stalled_at_ = Time::max();
};

}  // namespace ddprun::agent
