// Writes to a descriptor that other processes share, without ever blocking and without changing it:
// O_NONBLOCK on the descriptor itself would reach the workers and the shell, which have the same
// open file. Loop's thread; owned by Console.
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <functional>
#include <string_view>

#include "proto/file_handle.h"
#include "proto/loop.h"

namespace ddprun::agent {

class NonblockingWriter {
 public:
  enum class Outcome { kWritten, kWouldBlock, kNobodyReads };
  struct Result {
    Outcome outcome = Outcome::kWritten;
    std::size_t bytes = 0;  // taken from the front of the text; only with kWritten
  };

  // `fd` stays open as long as this lives; it is not owned.
  NonblockingWriter(asio::io_context& loop, int fd);
  NonblockingWriter(const NonblockingWriter&) = delete;
  NonblockingWriter& operator=(const NonblockingWriter&) = delete;
  NonblockingWriter(NonblockingWriter&&) = delete;
  NonblockingWriter& operator=(NonblockingWriter&&) = delete;
  ~NonblockingWriter();

  // Writes as much of `text` as the reader has room for now.
  Result write(std::string_view text);
  // Calls back once when write() may take more; never after this object's end.
  void when_writable(std::function<void()> callback);
  // The descriptor that is written to.
  int descriptor() const { return fd_; }

 private:
  enum class Way {
    kOpenedAnew,  // a description of our own, opened with O_NONBLOCK
    kSocket,      // send() takes the flag with each call
    kAskFirst,    // poll() says whether a small write blocks
    kPlain,       // a file or /dev/null: a write does not wait for a reader
  };

  static Way way_of(int fd, int reopened);

  FileHandle reopened_;  // the pipe or terminal, opened anew; none where that is not possible
  Way way_;
  int fd_;
  asio::posix::stream_descriptor waiter_;  // knows when fd_ takes bytes; does not own it
};

}  // namespace ddprun::agent
