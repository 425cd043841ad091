// Writes to the launcher's own stdout or stderr without ever blocking the loop: a stuck terminal or
// a full pipe must not keep the agent from reaping and signalling. Whole chunks in order; the
// reader's slowness is passed on by full(). Loop's thread.
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "agent/file_handle.h"
#include "proto/loop.h"

namespace ddprun::agent {

// Bytes waiting for a slow console before the workers' pipes are no longer read.
inline constexpr std::size_t kConsoleBacklogBytes = std::size_t{1} << 20;

class Console {
 public:
  // Writes to what `fd` is open on. A pipe or terminal is opened anew, so that not to block is a
  // property of this object alone: O_NONBLOCK on `fd` itself would reach the workers and the shell,
  // which share it.
  Console(asio::io_context& loop, int fd);
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;
  ~Console();

  // Queues `text`; written in order.
  void write(std::string text);

  // True while more than kConsoleBacklogBytes wait.
  bool full() const { return queued_bytes_ > kConsoleBacklogBytes; }
  // Called once when the backlog has drained below the limit.
  void when_drained(std::function<void()> callback) { drained_.push_back(std::move(callback)); }

  // Writes what is queued, waiting for a slow reader up to `limit`; drops the rest. For the end of
  // the launcher.
  void flush(std::chrono::milliseconds limit = std::chrono::seconds(2));

 private:
  enum class Progress { kWritten, kWouldBlock };

  void write_some();
  Progress write_chunk();
  void tell_drained();

  asio::posix::stream_descriptor
      waiter_;      // knows when `own_` takes bytes again; not the owner of its descriptor
  FileHandle own_;  // the console opened anew; none where that is not possible
  int fd_;          // where bytes go: `own_`, else the fd given, which may block
  bool waiting_ = false;
  std::deque<std::string> queue_;
  std::size_t written_of_front_ = 0;
  std::size_t queued_bytes_ = 0;
  std::vector<std::function<void()>> drained_;
};

}  // namespace ddprun::agent
