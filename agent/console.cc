#include "agent/console.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <utility>

namespace ddprun::agent {

Console::Console(asio::io_context& loop, int fd) : descriptor_(loop), fd_(fd) {
  struct stat facts {};
  pollable_ = ::fstat(fd, &facts) == 0 && !S_ISREG(facts.st_mode) && !S_ISDIR(facts.st_mode);
  if (!pollable_) return;
  boost::system::error_code failed;
  descriptor_.assign(::fcntl(fd, F_DUPFD_CLOEXEC, 0), failed);
  if (failed)
    pollable_ =
        false;  // epoll refuses some devices (/dev/null): writing to them does not block either
}

void Console::write(std::string text) {
  if (text.empty()) return;
  queued_bytes_ += text.size();
  queue_.push_back(std::move(text));
  if (!waiting_) write_some();
}

// A pipe or terminal that polls writable takes PIPE_BUF bytes without blocking (pipe(7)), so no
// non-blocking flag is needed, which would change the shell's own descriptor too.
void Console::write_some() {
  if (!pollable_) {
    while (write_chunk(SSIZE_MAX)) {
    }
    tell_drained();
    return;
  }
  pollfd ready{fd_, POLLOUT, 0};
  while (!queue_.empty() && ::poll(&ready, 1, 0) == 1) {
    if (!write_chunk(PIPE_BUF)) break;
  }
  if (!full()) tell_drained();
  if (!queue_.empty()) wait_until_writable();
}

// Writes one piece of the queue's front; false when there is nothing left to write.
bool Console::write_chunk(std::size_t limit_bytes) {
  if (queue_.empty()) return false;
  std::string& front = queue_.front();
  const std::size_t size = std::min(front.size() - written_of_front_, limit_bytes);
  const ssize_t written = ::write(fd_, front.data() + written_of_front_, size);
  if (written < 0 && (errno == EINTR || errno == EAGAIN)) return true;
  if (written < 0) {  // nobody reads any more: drop, the files have it all
    queue_.clear();
    queued_bytes_ = written_of_front_ = 0;
    return false;
  }
  written_of_front_ += static_cast<std::size_t>(written);
  queued_bytes_ -= static_cast<std::size_t>(written);
  if (written_of_front_ == front.size()) {
    queue_.pop_front();
    written_of_front_ = 0;
  }
  return true;
}

void Console::wait_until_writable() {
  waiting_ = true;
  descriptor_.async_wait(asio::posix::stream_descriptor::wait_write,
                         [this](boost::system::error_code error) {
                           if (error == asio::error::operation_aborted)
                             return;  // we are being destroyed
                           waiting_ = false;
                           write_some();
                         });
}

void Console::tell_drained() {
  for (const auto& callback : std::exchange(drained_, {})) callback();
}

void Console::flush() {
  pollfd ready{fd_, POLLOUT, 0};
  while (!queue_.empty() && ::poll(&ready, 1, -1) == 1)
    write_chunk(pollable_ ? PIPE_BUF : SSIZE_MAX);
}

}  // namespace ddprun::agent
