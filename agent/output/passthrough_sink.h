// A worker's stderr that the user neither redirected nor tee'd: byte for byte to the console, and
// its end kept for the failure report.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/core/clock.h"
#include "agent/output/stream_sink.h"

namespace ddprun::agent {

// Pieces of one line (print() of an unbuffered Python writes text and newline apart) follow each
// other within microseconds; a person does not notice this wait.
inline constexpr std::chrono::milliseconds kPartialLineWait{100};

// Passes a stream on byte for byte, in whole lines where they come quickly: a program that writes a
// line in pieces is not torn by another rank's. A prompt or a progress bar without a newline is
// seen within kPartialLineWait. Pure.
class LineJoiner {
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

// What the failure report quotes of one worker: a Python traceback fits, a screen still holds it.
inline constexpr std::size_t kTailLines = 20;
// Bound of a tail's bytes, for lines of any length.
inline constexpr std::size_t kTailBytes = std::size_t{16} << 10;

// The end of a worker's stderr, kept in memory where no file has it, so that the failure report can
// quote it. Pure.
class StderrTail {
 public:
  void take(std::string_view bytes);
  // The last kTailLines lines within the last kTailBytes bytes, as last_lines() gives them.
  std::vector<std::string> lines() const;

 private:
  std::string kept_;  // below 2 * kTailBytes: it is cut only now and then
};

// The stream of one worker. Loop's thread; owned by LogPipes.
class PassthroughSink final : public StreamSink {
 public:
  // `tail` is shared with WorkerFiles, which is asked for it after the pipe is gone.
  PassthroughSink(Console& console, std::shared_ptr<StderrTail> tail)
      : StreamSink(console), tail_(std::move(tail)) {}

  void take(std::string_view bytes, Time now) override {
    tail_->take(bytes);
    console().write(lines_.take(bytes, now));
  }
  void finish(Time /*now*/) override { console().write(lines_.finish()); }
  bool in_long_line() const override { return lines_.in_long_line(); }
  void interrupt() override { lines_.interrupt(); }
  void time_passed(Time now) override { console().write(lines_.time_passed(now)); }
  Time look_again_at() const override { return lines_.look_again_at(); }

 private:
  LineJoiner lines_;
  std::shared_ptr<StderrTail> tail_;
};

}  // namespace ddprun::agent
