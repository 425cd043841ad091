#include "agent/console.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

namespace ddprun::agent {
namespace {

// A description of our own of the pipe or terminal behind `fd` (proc(5), /proc/pid/fd). None for
// files, whose offset must stay shared and which do not block, for sockets, which cannot be opened,
// and where we may not.
int open_anew(int fd) {
  struct stat facts {};
  if (::fstat(fd, &facts) != 0 || !(S_ISFIFO(facts.st_mode) || S_ISCHR(facts.st_mode))) return -1;
  return ::open(("/proc/self/fd/" + std::to_string(fd)).c_str(),
                O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
}

// A socket's reader may be slow; so may a pipe's or terminal's that we were not let open.
bool may_block(int fd) {
  struct stat facts {};
  return ::fstat(fd, &facts) == 0 && (S_ISSOCK(facts.st_mode) || S_ISFIFO(facts.st_mode) ||
                                      (S_ISCHR(facts.st_mode) && ::isatty(fd) != 0));
}

bool is_same(int one, int other) {
  struct stat a {};
  struct stat b {};
  return ::fstat(one, &a) == 0 && ::fstat(other, &b) == 0 && a.st_dev == b.st_dev &&
         a.st_ino == b.st_ino;
}

}  // namespace

Console::Console(asio::io_context& loop, int fd)
    : waiter_(loop),
      own_(open_anew(fd)),
      fd_(fd),
      is_terminal_(::isatty(fd) != 0),
      never_blocks_(own_.get() >= 0 || !may_block(fd)) {
  if (own_.get() < 0) return;
  boost::system::error_code refused;
  waiter_.assign(own_.get(), refused);
  if (refused) {  // epoll knows no such device (/dev/null); it does not block either
    own_.close();
  } else {
    fd_ = own_.get();
  }
}

Console::~Console() {
  if (waiter_.is_open()) waiter_.release();
}

void Console::write(std::string text) {
  if (text.empty()) return;
  at_line_start_ = text.back() == '\n';
  queued_bytes_ += text.size();
  queue_.push_back(std::move(text));
  if (!waiting_) write_some();
}

void Console::begin_line() {
  if (!at_line_start_) write("\n");
}

void Console::write_some() {
  while (!queue_.empty()) {
    if (write_chunk() == Progress::kWritten) continue;
    waiting_ = true;
    waiter_.async_wait(asio::posix::stream_descriptor::wait_write,
                       [this](boost::system::error_code cancelled) {
                         if (cancelled) return;  // we are being destroyed
                         waiting_ = false;
                         write_some();
                       });
    break;
  }
  if (full()) return;
  for (const auto& callback : std::exchange(when_drained_, {})) callback();
}

void Console::when_ready(std::function<void()> callback) {
  (full() ? when_drained_ : when_free_).push_back(std::move(callback));
}

void Console::release_turn(const void* stream) {
  if (!turn_.release(stream)) return;
  for (const auto& callback : std::exchange(when_free_, {})) callback();
}

Console::Progress Console::write_chunk() {
  const std::string& front = queue_.front();
  const ssize_t written =
      ::write(fd_, front.data() + written_of_front_, front.size() - written_of_front_);
  if (written < 0 && errno == EINTR) return Progress::kWritten;
  if (written < 0 && errno == EAGAIN && own_.get() >= 0) return Progress::kWouldBlock;
  if (written < 0) {  // nobody reads any more: drop, the files have it all
    queue_.clear();
    queued_bytes_ = written_of_front_ = 0;
    return Progress::kWritten;
  }
  written_of_front_ += static_cast<std::size_t>(written);
  queued_bytes_ -= static_cast<std::size_t>(written);
  if (written_of_front_ == front.size()) {
    queue_.pop_front();
    written_of_front_ = 0;
  }
  return Progress::kWritten;
}

void Console::flush(std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  pollfd writable{fd_, POLLOUT, 0};
  while (!queue_.empty()) {
    if (write_chunk() == Progress::kWritten) continue;
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return;
    ::poll(&writable, 1, static_cast<int>(left.count()));
  }
}

Consoles::Consoles(asio::io_context& loop, int out_fd, int err_fd)
    : out_(loop, out_fd),
      err_(is_same(out_fd, err_fd) ? nullptr : std::make_unique<Console>(loop, err_fd)) {}

void Consoles::flush() {
  out_.flush();
  if (err_) err_->flush();
}

}  // namespace ddprun::agent
