// Reads the streams of this node's workers that pass through the agent. Each has a pipe, and what
// is read goes to the stream's sink. It does not write: sinks and consoles do. If the console is
// slow, it stops reading. So the workers get slower and memory stays bounded, but the agent never
// waits. A stream in the middle of a very long line has the console for itself. The others wait in
// their pipes. When nothing happens it does not wake up. Loop's thread; owned by WorkerGroup.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "agent/output/stream_sink.h"
#include "base/alarm.h"
#include "base/file_handle.h"
#include "base/loop.h"
#include "base/result.h"

namespace ddprun::agent {

// The most that one read takes. More would make the other streams wait; less would mean many calls
// for much output.
inline constexpr std::size_t kReadBytes = std::size_t{256} << 10;
// The size that we ask the kernel for, for each pipe. In a larger pipe a worker can print a burst
// without waiting for us. We do not ask for the maximum (1 MiB). All pipes of a user share 64 MiB
// (pipe(7), pipe-user-pages-soft). A node with many workers must leave some to others.
inline constexpr int kPipeBytes = 256 << 10;

class LogPipes {
 public:
  explicit LogPipes(asio::io_context& loop)
      : loop_(loop), alarm_(loop, [this] { time_passed(); }) {}

  // Opens a pipe whose output goes to `sink`. Returns the write end for the worker, close-on-exec.
  // The caller must close it after the spawn, or the stream never ends. Error kSystem: no pipe can
  // be made.
  Result<FileHandle> open(std::unique_ptr<StreamSink> sink);

  // Reads the bytes that are in the pipes now, and passes them on. They are the last words of a
  // worker that has just died.
  void catch_up();
  // Reads what the workers left in their pipes, passes it on, and closes all pipes and sinks. Call
  // when every process that could hold a write end is gone: then nothing is lost. It does not wait
  // for a process that lives on, and does not ask whether the console has room.
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
  void read_held(Pipe& pipe);
  void read_rest(Pipe& pipe);
  Time look(Pipe& pipe, Time now);
  void time_passed();

  asio::io_context& loop_;
  Alarm alarm_;
  std::unique_ptr<std::array<char, kReadBytes>> buffer_;  // null until the first pipe is opened
  // Each pipe has two owners: this list, and the handler that waits for the pipe. A handler may be
  // queued in the loop already when drain() empties the list.
  std::vector<std::shared_ptr<Pipe>> pipes_;
};

}  // namespace ddprun::agent
