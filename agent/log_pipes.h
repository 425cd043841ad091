// The tee'd streams of this node's workers: one pipe each, read as it fills, written to the
// stream's file byte for byte and to the console line by line. A slow console slows the workers
// down (bounded memory), never the agent. Loop's thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "agent/console.h"
#include "agent/file_handle.h"
#include "agent/line_splitter.h"
#include "proto/result.h"

namespace ddprun::agent {

class LogPipes {
 public:
  explicit LogPipes(asio::io_context& loop) : loop_(loop) {}

  // Opens a pipe whose output goes to `file` and, with `prefix` before each line, to `console`.
  // Returns the write end for the worker; the caller closes its copy after the spawn.
  Result<FileHandle> open(FileHandle file, std::string prefix, Console& console);

  // Reads what the workers left in their pipes, passes it on and closes all pipes. Call when every
  // process that could hold a write end is gone: then nothing is lost.
  void drain();

 private:
  struct Pipe {
    asio::posix::stream_descriptor reader;
    FileHandle file;
    LineSplitter lines;
    Console* console;
    bool ended = false;
  };
  enum class ReadResult { kMore, kNothingNow, kEnded };

  void arm(const std::shared_ptr<Pipe>& pipe);
  static ReadResult read_some(Pipe& pipe);

  asio::io_context& loop_;
  // Owned here and by the handler that waits for it: one may already be queued when drain() lets
  // go.
  std::vector<std::shared_ptr<Pipe>> pipes_;
};

}  // namespace ddprun::agent
