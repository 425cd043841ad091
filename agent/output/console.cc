#include "agent/output/console.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "proto/log.h"

namespace ddprun::agent {
namespace {

bool is_character_device(int fd) {
  struct stat facts {};
  return ::fstat(fd, &facts) == 0 && S_ISCHR(facts.st_mode);
}

bool is_same(int one, int other) {
  struct stat a {};
  struct stat b {};
  return ::fstat(one, &a) == 0 && ::fstat(other, &b) == 0 && a.st_dev == b.st_dev &&
         a.st_ino == b.st_ino;
}

}  // namespace

Console::Console(asio::io_context& loop, int fd, std::string called)
    : called_(std::move(called)),
      writer_(loop, fd),
      is_terminal_(::isatty(fd) != 0),
      patience_(loop) {}

void Console::write(std::string text) {
  if (text.empty()) return;
  // Once something was dropped, all is until there is plenty of room: one gap, not many.
  const bool has_room =
      dropped_bytes_ > 0 ? !full() : queued_bytes_ + text.size() <= kConsoleMostBytes;
  if (!has_room && !last_words_bytes_) {
    dropped_bytes_ += text.size();
    return;
  }
  tell_dropped();
  push(std::move(text));
  if (!waiting_) write_some();
}

void Console::push(std::string text) {
  at_line_start_ = text.back() == '\n';
  queued_bytes_ += text.size();
  if (last_words_bytes_) *last_words_bytes_ += text.size();
  queue_.push_back(std::move(text));
}

void Console::begin_last_words() {
  tell_dropped();
  if (!last_words_bytes_) last_words_bytes_ = 0;
}

std::string Console::dropped_line(std::size_t bytes) const {
  return fmt::format("{}: {} bytes of output are dropped here: nobody read them\n", called_, bytes);
}

void Console::tell_dropped() {
  if (dropped_bytes_ == 0) return;
  if (!at_line_start_) push("\n");
  push(dropped_line(std::exchange(dropped_bytes_, 0)));
}

void Console::begin_line() {
  if (!at_line_start_) write("\n");
}

void Console::write_some() {
  const std::size_t before = queued_bytes_;
  while (!queue_.empty()) {
    if (write_chunk() == Progress::kWritten) continue;
    waiting_ = true;
    writer_.when_writable([this] {
      waiting_ = false;
      write_some();
    });
    break;
  }
  if (queued_bytes_ != before) patience_.cancel();
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
  const std::string_view front = queue_.front();
  const auto written = writer_.write(front.substr(written_of_front_));
  switch (written.outcome) {
    case NonblockingWriter::Outcome::kWouldBlock:
      return Progress::kWouldBlock;
    case NonblockingWriter::Outcome::kNobodyReads:  // drop: the files have it all
      queue_.clear();
      queued_bytes_ = written_of_front_ = 0;
      return Progress::kWritten;
    case NonblockingWriter::Outcome::kWritten:
      break;
  }
  written_of_front_ += written.bytes;
  queued_bytes_ -= written.bytes;
  if (written_of_front_ == front.size()) {
    queue_.pop_front();
    written_of_front_ = 0;
  }
  return Progress::kWritten;
}

// True when nothing waits any more.
bool Console::write_all_now() {
  while (!queue_.empty()) {
    if (write_chunk() == Progress::kWouldBlock) return false;
  }
  return true;
}

// What a pipe holds its reader gets also when we are gone.
void Console::grow_pipe(std::size_t most_bytes) const {
  const int fd = writer_.descriptor();
  const int bytes = ::fcntl(fd, F_GETPIPE_SZ);
  if (bytes < 0 || static_cast<std::size_t>(bytes) >= most_bytes) return;
  const std::size_t wanted = std::min(static_cast<std::size_t>(bytes) + queued_bytes_, most_bytes);
  ::fcntl(fd, F_SETPIPE_SZ, static_cast<int>(wanted));  // refused: the reader has to make room
}

asio::awaitable<void> Console::flush(std::chrono::milliseconds limit) {
  tell_dropped();
  if (!write_all_now()) {
    grow_pipe(kFlushPipeBytes);
    if (!write_all_now() && !waiting_) write_some();
  }
  while (!queue_.empty() && is_patient_) {
    const std::size_t before = queued_bytes_;
    patience_.expires_after(limit);
    co_await patience_.async_wait(kAsTuple);
    if (queued_bytes_ >= before) break;  // also where more was queued and nothing taken
  }
  give_up();
}

void Console::stop_waiting() {
  is_patient_ = false;
  patience_.cancel();
}

// Nobody reads: the last words only, should the reader ever go on. A pipe grows to hold them.
void Console::give_up() {
  if (queue_.empty()) return;
  const std::size_t kept = std::min(last_words_bytes_.value_or(0), queued_bytes_);
  const std::size_t unshown = queued_bytes_ - kept;
  while (queued_bytes_ > kept) {
    queued_bytes_ -= queue_.front().size() - std::exchange(written_of_front_, 0);
    queue_.pop_front();
  }
  if (unshown > 0) {
    queue_.push_front(fmt::format("\n{}", dropped_line(unshown)));
    queued_bytes_ += queue_.front().size();
  }
  grow_pipe(kLastWordsPipeBytes);
  write_all_now();
}

Consoles::Consoles(asio::io_context& loop, int out_fd, int err_fd, const std::string& called)
    : loop_(loop),
      share_an_order_(is_same(out_fd, err_fd) && !is_character_device(out_fd)),
      out_(loop, out_fd, called),
      err_(is_same(out_fd, err_fd) ? nullptr : std::make_unique<Console>(loop, err_fd, called)) {}

Consoles::~Consoles() {
  if (has_log_) log::set_writer(nullptr);
}

void Consoles::take_log() {
  has_log_ = true;
  log::set_writer([this, own_thread = std::this_thread::get_id()](std::string_view line) {
    const auto show = [this, text = std::string(line)] {
      err().begin_line();
      err().write(text);
    };
    if (std::this_thread::get_id() == own_thread) {
      show();
    } else {
      asio::post(loop_, show);  // gRPC's threads
    }
  });
}

asio::awaitable<void> Consoles::flush() {
  using asio::experimental::awaitable_operators::operator&&;
  if (err_) {
    co_await (out_.flush() && err_->flush());
  } else {
    co_await out_.flush();
  }
}

void Consoles::stop_waiting() {
  out_.stop_waiting();
  if (err_) err_->stop_waiting();
}

}  // namespace ddprun::agent
