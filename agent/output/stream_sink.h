// The end of the way of one worker's stream: the interface of TeeSink and PassthroughSink. A sink
// does not read the stream and never waits. LogPipes reads, and asks the sink's console first
// whether the stream may write. Loop's thread; owned by LogPipes.
#pragma once

#include <string_view>

#include "agent/core/clock.h"
#include "agent/output/console.h"

namespace ddprun::agent {

class StreamSink {
 public:
  // `console` must outlive this.
  explicit StreamSink(Console& console) : console_(console) {}
  StreamSink(const StreamSink&) = delete;
  StreamSink& operator=(const StreamSink&) = delete;
  StreamSink(StreamSink&&) = delete;
  StreamSink& operator=(StreamSink&&) = delete;
  virtual ~StreamSink() = default;

  // Takes more bytes of the stream. Call it only when the console takes() this stream, or in
  // LogPipes::drain().
  virtual void take(std::string_view bytes, Time now) = 0;
  // Call once, when the stream has ended. Its last line may have no newline.
  virtual void finish(Time now) = 0;

  // True while the stream is in the middle of a long line, whose beginning the console shows
  // already. No other stream may write until the line ends, or until interrupt().
  virtual bool in_long_line() const = 0;
  // Call before other streams write in the middle of the long line.
  virtual void interrupt() = 0;

  // Passes on what has been held back long enough; with Time::max() everything. Call it only when
  // the turn is free for this stream.
  virtual void time_passed(Time now) = 0;
  // When time_passed() will have something to pass on. Time::max(): not before more bytes come.
  virtual Time look_again_at() const = 0;

  Console& console() const { return console_; }

 private:
  Console& console_;
};

}  // namespace ddprun::agent
