#include "agent/output/nonblocking_writer.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
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

// If poll() says that a pipe is writable, a write of this many bytes does not block (pipe(7),
// PIPE_BUF).
constexpr std::size_t kPipeChunk = PIPE_BUF;
// poll() says that a terminal is writable while fewer bytes than this wait in it (Linux,
// WAKEUP_CHARS).
constexpr std::size_t kTerminalChunk = 256;

// Opens the pipe or terminal behind `fd` once more (proc(5), /proc/pid/fd), so that O_NONBLOCK is
// ours alone. -1 for a file: it does not block. Its offset must stay shared, or we would overwrite
// the workers' output. -1 for a socket, which cannot be opened so (ENXIO). -1 also if it is another
// user's and we may not open it. O_NOCTTY: it must not become our controlling terminal.
int open_anew(int fd) {
  struct stat facts {};
  if (::fstat(fd, &facts) != 0 || !(S_ISFIFO(facts.st_mode) || S_ISCHR(facts.st_mode))) return -1;
  return ::open(("/proc/self/fd/" + std::to_string(fd)).c_str(),
                O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
}

// Asks without waiting. Another process may fill the pipe before our write, which then waits after
// all. So this is only the way for what we cannot open anew.
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
  FileHandle epoll(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event writable{.events = EPOLLOUT, .data = {}};
  // epoll refuses /dev/null with EPERM (epoll_ctl(2)). Writing to it does not wait either.
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd_, &writable) != 0) {
    way_ = Way::kPlain;
    return;
  }
  boost::system::error_code refused;
  waiter_.assign(epoll.get(), refused);
  if (refused) {
    way_ = Way::kPlain;
  } else {
    epoll.release();  // the waiter closes it
  }
}

NonblockingWriter::Result NonblockingWriter::write(std::string_view text) {
  if (way_ == Way::kAskFirst) {
    if (!is_writable(fd_)) return {Outcome::kWouldBlock, 0};
    text = text.substr(0, ::isatty(fd_) != 0 ? kTerminalChunk : kPipeChunk);
  }
  ssize_t written = -1;
  // MSG_DONTWAIT is O_NONBLOCK for this call only, so it does not reach others that use the socket.
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
  waiter_.async_wait(asio::posix::stream_descriptor::wait_read,
                     [callback = std::move(callback)](boost::system::error_code cancelled) {
                       if (!cancelled) callback();
                     });
}

}  // namespace ddprun::agent
