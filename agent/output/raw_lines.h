// Passes a stream on byte for byte, in whole lines where they come quickly: a program that writes a
// line in pieces is not torn by another rank's, yet a prompt or a progress bar without a newline is
// seen within kPartialLineWait. Pure.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "agent/core/clock.h"

namespace ddprun::agent {

// Pieces of one line (print() of an unbuffered Python writes text and newline apart) follow each
// other within microseconds; a person does not notice this wait.
inline constexpr std::chrono::milliseconds kPartialLineWait{100};

class RawLines {
 public:
  // Takes more bytes; returns what is to be passed on now.
  std::string take(std::string_view bytes, Time now);
  // What has waited too long, or everything at the end of the stream.
  std::string time_passed(Time now);
  std::string finish();
  // When time_passed() will have something; Time::max(): not before more bytes.
  Time look_again_at() const;

  // True while a line longer than kHeldLineBytes is passed on in parts.
  bool in_long_line() const { return in_long_line_; }
  // Others write in the middle of the long line.
  void interrupt() { in_long_line_ = false; }

 private:
  std::string held_;  // begins a line; below kHeldLineBytes
  Time held_since_{};
  bool in_long_line_ = false;
};

}  // namespace ddprun::agent
