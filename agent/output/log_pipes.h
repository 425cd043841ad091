// The streams of this node's workers that pass through the agent: one pipe each, read as it fills,
// handed to its sink. A slow console slows the workers down (bounded memory), never the agent; a
// stream in the middle of a very long line has the console to itself, and the others wait in their
// pipes. Idle, it does not wake up. Loop's thread; owned by Agent.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "agent/output/stream_sink.h"
#include "proto/alarm.h"
#include "proto/file_handle.h"
#include "proto/loop.h"
#include "proto/result.h"

namespace ddprun::agent {

// Read at once at most: fair to the other streams, and few calls for much output.
inline constexpr std::size_t kReadBytes = std::size_t{256} << 10;
// Asked of the kernel for each pipe, so that a worker that prints in bursts does not wait for us.
// Not its maximum (1 MiB): all pipes of a user share 64 MiB (pipe(7), pipe-user-pages-soft), of
// which a node of many workers must leave the rest.
inline constexpr int kPipeBytes = 256 << 10;

class LogPipes {
 public:
  explicit LogPipes(asio::io_context& loop)
      : loop_(loop), alarm_(loop, [this] { time_passed(); }) {}

  // Opens a pipe whose output goes to `sink`. Returns the write end for the worker; the caller
  // closes its copy after the spawn.
  Result<FileHandle> open(std::unique_ptr<StreamSink> sink);

  // Reads what the workers left in their pipes, passes it on and closes all pipes. Call when every
  // process that could hold a write end is gone: then nothing is lost.
  void drain();

 private:
  struct Pipe {
    asio::posix::stream_descriptor reader;
    std::unique_ptr<StreamSink> sink;
    bool ended = false;
    std::uint64_t bytes_read = 0;
  };
  enum class ReadResult { kMore, kNothingNow, kEnded };

  void arm(const std::shared_ptr<Pipe>& pipe);
  void readable(const std::shared_ptr<Pipe>& pipe);
  void park(const std::shared_ptr<Pipe>& pipe);
  ReadResult read_some(Pipe& pipe);
  void read_rest(Pipe& pipe);
  Time look(Pipe& pipe, Time now);
  void time_passed();

  asio::io_context& loop_;
  Alarm alarm_;
  std::unique_ptr<std::array<char, kReadBytes>> buffer_;  // once there is a pipe
  // Owned here and by the handler that waits for it: one may already be queued when drain() lets
  // go.
  std::vector<std::shared_ptr<Pipe>> pipes_;
};

}  // namespace ddprun::agent
