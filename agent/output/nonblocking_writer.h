// Writes to a descriptor that other processes share, and does not wait for the reader. It does not
// set O_NONBLOCK on that descriptor. The flag belongs to the open file (open(2)), which the workers
// and the user's shell share. Their writes would then fail with EAGAIN. It keeps no text: Console
// has the queue. Loop's thread; owned by Console.
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <functional>
#include <string_view>

#include "base/file_handle.h"
#include "base/loop.h"

namespace ddprun::agent {

class NonblockingWriter {
 public:
  // kNobodyReads: the reader is gone, or the write failed for another reason (a full disk). To try
  // the same text again is of no use.
  enum class Outcome { kWritten, kWouldBlock, kNobodyReads };
  struct Result {
    Outcome outcome = Outcome::kWritten;
    std::size_t bytes = 0;  // how many bytes of the text were written; only with kWritten
  };

  // `fd` stays the caller's and must stay open as long as this lives.
  NonblockingWriter(asio::io_context& loop, int fd);
  NonblockingWriter(const NonblockingWriter&) = delete;
  NonblockingWriter& operator=(const NonblockingWriter&) = delete;
  NonblockingWriter(NonblockingWriter&&) = delete;
  NonblockingWriter& operator=(NonblockingWriter&&) = delete;
  ~NonblockingWriter() = default;

  // Writes as much of `text` as can be written now without waiting, often less than all. SIGPIPE
  // must be ignored.
  Result write(std::string_view text);
  // Call after kWouldBlock. Calls back once, when write() may take more. The end of this object
  // cancels the wait. But a wait that is over already still calls back: so destroy this only when
  // the loop has stopped.
  void when_writable(std::function<void()> callback);
  // The descriptor that is written to: `fd`, or our own one for the same pipe or terminal.
  int descriptor() const { return fd_; }

 private:
  enum class Way {
    kOpenedAnew,  // an open file of our own, with O_NONBLOCK
    kSocket,      // send() takes the flag with each call
    kAskFirst,    // before each small write poll() says whether it would block
    kPlain,       // a file or /dev/null: a write does not wait for a reader
  };

  static Way way_of(int fd, int reopened);

  FileHandle reopened_;  // the pipe or terminal, opened anew; -1 if that is not possible
  Way way_;
  int fd_;
  // An epoll descriptor of our own, which can be read when fd_ takes bytes. Asio sets O_NONBLOCK on
  // what it waits for, and fd_ may be the user's.
  asio::posix::stream_descriptor waiter_;
};

}  // namespace ddprun::agent
