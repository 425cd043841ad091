// A worker's stderr that the user neither redirected nor tee'd: byte for byte to the console, and
// its end kept for the failure report. Loop's thread; owned by LogPipes.
#pragma once

#include <memory>

#include "agent/output/raw_lines.h"
#include "agent/output/stderr_tail.h"
#include "agent/output/stream_sink.h"

namespace ddprun::agent {

class ThroughSink final : public StreamSink {
 public:
  // `tail` is shared with WorkerFiles, which is asked for it after the pipe is gone.
  ThroughSink(Console& console, std::shared_ptr<StderrTail> tail)
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
  RawLines lines_;
  std::shared_ptr<StderrTail> tail_;
};

}  // namespace ddprun::agent
