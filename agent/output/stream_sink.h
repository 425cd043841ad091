// Where the bytes of one worker's stream go. LogPipes reads the stream and asks a sink's console
// whether it may: the sink itself never waits. Loop's thread.
#pragma once

#include <string_view>

#include "agent/core/clock.h"
#include "agent/output/console.h"

namespace ddprun::agent {

class StreamSink {
 public:
  explicit StreamSink(Console& console) : console_(console) {}  // outlives this
  StreamSink(const StreamSink&) = delete;
  StreamSink& operator=(const StreamSink&) = delete;
  StreamSink(StreamSink&&) = delete;
  StreamSink& operator=(StreamSink&&) = delete;
  virtual ~StreamSink() = default;

  virtual void take(std::string_view bytes, Time now) = 0;
  // The stream has ended; its last line may have no newline.
  virtual void finish(Time now) = 0;

  // True while the console shows the beginning of a line whose rest is to come: nobody else may
  // write to it until then, or until interrupt().
  virtual bool in_long_line() const = 0;
  virtual void interrupt() = 0;

  // Passes on what was held back until now; call it only when the console is free for this stream.
  // Time::max(): everything.
  virtual void time_passed(Time now) = 0;
  // When time_passed() will have something; Time::max(): not before more bytes.
  virtual Time look_again_at() const = 0;

  Console& console() const { return console_; }

 private:
  Console& console_;
};

}  // namespace ddprun::agent
