#include "agent/output/nonblocking_writer.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <string>
#include <utility>

namespace ddprun::agent {
namespace {

// A pipe that poll() calls writable takes so much without blocking (pipe(7), PIPE_BUF). A terminal
// is called writable while fewer bytes than this wait in it (Linux, WAKEUP_CHARS).
constexpr std::size_t kPipeChunk = PIPE_BUF;
constexpr std::size_t kTerminalChunk = 256;

// A description of our own of the pipe or terminal behind `fd` (proc(5), /proc/pid/fd). None for
// files, whose offset must stay shared and which do not block, for sockets, which cannot be opened,
// and where we may not open it (it belongs to another user).
int open_anew(int fd) {
  struct stat facts {};
  if (::fstat(fd, &facts) != 0 || !(S_ISFIFO(facts.st_mode) || S_ISCHR(facts.st_mode))) return -1;
  return ::open(("/proc/self/fd/" + std::to_string(fd)).c_str(),
                O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
}

bool is_writable(int fd) {
  pollfd writable{fd, POLLOUT, 0};
  return ::poll(&writable, 1, 0) > 0;
}

}  // namespace

NonblockingWriter::Way NonblockingWriter::way_of(int fd, int reopened) {
  if (reopened >= 0) return Way::kOpenedAnew;
  struct stat facts {};
  if (::fstat(fd, &facts) != 0) return Way::kPlain;
  if (S_ISSOCK(facts.st_mode)) return Way::kSocket;
  const bool may_block = S_ISFIFO(facts.st_mode) || (S_ISCHR(facts.st_mode) && ::isatty(fd) != 0);
  return may_block ? Way::kAskFirst : Way::kPlain;
}

NonblockingWriter::NonblockingWriter(asio::io_context& loop, int fd)
    : reopened_(open_anew(fd)),
      way_(way_of(fd, reopened_.get())),
      fd_(way_ == Way::kOpenedAnew ? reopened_.get() : fd),
      waiter_(loop) {
  if (way_ == Way::kPlain) return;
  boost::system::error_code refused;
  waiter_.assign(fd_, refused);
  // epoll knows no such device (/dev/null); it does not block either.
  if (refused) way_ = Way::kPlain;
}

NonblockingWriter::~NonblockingWriter() {
  if (waiter_.is_open()) waiter_.release();
}

NonblockingWriter::Result NonblockingWriter::write(std::string_view text) {
  if (way_ == Way::kAskFirst) {
    if (!is_writable(fd_)) return {Outcome::kWouldBlock, 0};
    text = text.substr(0, ::isatty(fd_) != 0 ? kTerminalChunk : kPipeChunk);
  }
  ssize_t written = -1;
  do {
    written = way_ == Way::kSocket
                  ? ::send(fd_, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL)
                  : ::write(fd_, text.data(), text.size());
  } while (written < 0 && errno == EINTR);
  if (written >= 0) return {Outcome::kWritten, static_cast<std::size_t>(written)};
  const bool waits = way_ != Way::kPlain && (errno == EAGAIN || errno == EWOULDBLOCK);
  return {waits ? Outcome::kWouldBlock : Outcome::kNobodyReads, 0};
}

void NonblockingWriter::when_writable(std::function<void()> callback) {
  waiter_.async_wait(asio::posix::stream_descriptor::wait_write,
                     [callback = std::move(callback)](boost::system::error_code cancelled) {
                       if (!cancelled) callback();
                     });
}

}  // namespace ddprun::agent
