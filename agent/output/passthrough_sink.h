// The sink of a worker's stderr that the user neither redirected nor tee'd. The bytes go to the
// console unchanged, and the last ones are kept for the failure report. No prefix, no folding, no
// file. With `2>&1` the worker's stdout comes through the same pipe (worker_files.h). Loop's
// thread; owned by LogPipes.
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

// The beginning of a line waits this long for the rest of it. An unbuffered Python writes the text
// and the newline of one print() apart, within microseconds. A person does not notice this wait.
inline constexpr std::chrono::milliseconds kPartialLineWait{100};

// Passes a stream on unchanged, in whole lines if their pieces come quickly. So if a program writes
// a line in pieces, no line of another rank gets in between. A prompt or a progress bar has no
// newline: it is passed on after kPartialLineWait. Pure.
class LineJoiner {
 public:
  // Takes more bytes; returns what is to be passed on now.
  std::string take(std::string_view bytes, Time now);
  // Returns the held bytes if they have waited for kPartialLineWait, else nothing.
  std::string time_passed(Time now);
  // Call at the end of the stream: returns all held bytes.
  std::string finish();
  // When time_passed() will return something. Time::max(): not before more bytes come.
  Time look_again_at() const;

  // True while a line longer than kHeldLineBytes is passed on in parts.
  bool in_long_line() const { return in_long_line_; }
  // Others write in the middle of the long line. The rest of it is held as a line of its own.
  void interrupt() { in_long_line_ = false; }

 private:
  std::string held_;  // the part of an unfinished line not passed on yet; below kHeldLineBytes
  Time held_since_{};
  bool in_long_line_ = false;
};

// So many lines of one worker are quoted in the failure report. A Python traceback fits, and the
// report still fits on a screen.
inline constexpr std::size_t kTailLines = 20;
// The most bytes of these lines; a line may have any length.
inline constexpr std::size_t kTailBytes = std::size_t{16} << 10;

// Keeps the end of a worker's stderr in memory, so that the failure report can quote it. Only for a
// stderr that no file has. Pure.
class StderrTail {
 public:
  void take(std::string_view bytes);
  // The last kTailLines lines of the last kTailBytes bytes, as last_lines() shows them.
  std::vector<std::string> lines() const;

 private:
  std::string kept_;  // below 2 * kTailBytes, so that it need not be cut at each take()
};

class PassthroughSink final : public StreamSink {
 public:
  // WorkerFiles shares `tail`: it reads it when the pipe and this sink are gone.
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
