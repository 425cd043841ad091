#include "agent/output/console.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "base/log.h"

namespace ddprun::agent {
namespace {

// A terminal or /dev/null.
bool is_character_device(int fd) {
  struct stat facts {};
  return ::fstat(fd, &facts) == 0 && S_ISCHR(facts.st_mode);
}

// True if both are one terminal, pipe or file, also when it was opened twice.
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
  // After a first drop everything is dropped until less than kConsoleBacklogBytes wait. Otherwise
  // each text that just fits would stand alone between two gaps, each gap with a line about it.
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
  // First, so that this line counts as output and not as last words.
  tell_dropped();
  if (!last_words_bytes_) last_words_bytes_ = 0;
}

std::string Console::dropped_line(std::size_t bytes) const {
  return fmt::format("{}: {} bytes of output are dropped here: nobody read them\n", called_, bytes);
}

// Says in one line how much was dropped at this place of the output. Uses push(), since write()
// could drop the line again.
void Console::tell_dropped() {
  if (dropped_bytes_ == 0) return;
  if (!at_line_start_) push("\n");
  push(dropped_line(std::exchange(dropped_bytes_, 0)));
}

void Console::begin_line() {
  if (!at_line_start_) write("\n");
}

// Writes until the queue is empty or the reader has no room. Then the loop calls it again, when
// there is room.
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
  // Something was taken: flush() wakes up and starts its limit anew.
  if (queued_bytes_ != before) patience_.cancel();
  if (full()) return;
  // The list is taken out first, because a callback may call when_ready() again.
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
    // Mostly the reader is gone. The queue is dropped, or it would stay full and the workers would
    // wait for ever. The bytes are not counted: nobody could read the line about them.
    case NonblockingWriter::Outcome::kNobodyReads:
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

// Makes a pipe large enough for the queue, up to `most_bytes`. Its reader gets the content even
// when we are gone. Does nothing if the console is no pipe.
void Console::grow_pipe(std::size_t most_bytes) const {
  const int fd = writer_.descriptor();
  const int bytes = ::fcntl(fd, F_GETPIPE_SZ);
  if (bytes < 0 || static_cast<std::size_t>(bytes) >= most_bytes) return;
  const std::size_t wanted = std::min(static_cast<std::size_t>(bytes) + queued_bytes_, most_bytes);
  // The kernel may refuse (pipe(7), pipe-user-pages-soft). Then the reader has to make room.
  ::fcntl(fd, F_SETPIPE_SZ, static_cast<int>(wanted));
}

asio::awaitable<void> Console::flush(std::chrono::milliseconds limit) {
  tell_dropped();
  // Often a larger pipe takes all that is left. Then we end at once, and a slow reader does not
  // delay the end of the job.
  if (!write_all_now()) {
    grow_pipe(kFlushPipeBytes);
    if (!write_all_now() && !waiting_) write_some();
  }
  while (!queue_.empty() && is_patient_) {
    const std::size_t before = queued_bytes_;
    patience_.expires_after(limit);
    co_await patience_.async_wait(kAsTuple);
    // `==` would be wrong: the log may have queued more while the reader took nothing.
    if (queued_bytes_ >= before) break;
  }
  give_up();
}

void Console::stop_waiting() {
  is_patient_ = false;
  patience_.cancel();
}

// The reader takes nothing. Only the last words are kept, in case it goes on after our end. They go
// into the pipe, which is enlarged for them.
void Console::give_up() {
  if (queue_.empty()) return;
  // The last words are the end of the queue. Some of them may have been written already.
  const std::size_t kept = std::min(last_words_bytes_.value_or(0), queued_bytes_);
  const std::size_t unshown = queued_bytes_ - kept;
  while (queued_bytes_ > kept) {
    queued_bytes_ -= queue_.front().size() - std::exchange(written_of_front_, 0);
    queue_.pop_front();
  }
  if (unshown > 0) {
    // Begins with a newline: the text written last may have ended within a line.
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
  // The writer uses this object.
  if (has_log_) log::set_writer(nullptr);
}

void Consoles::take_log() {
  has_log_ = true;
  log::set_writer([this, own_thread = std::this_thread::get_id()](std::string_view line) {
    const auto show = [this, text = std::string(line)] {
      err().begin_line();
      err().write(text);
    };
    // gRPC's threads log too, but a Console belongs to the loop's thread. A line of that thread is
    // not posted. It would come after output that is written later.
    if (std::this_thread::get_id() == own_thread) {
      show();
    } else {
      asio::post(loop_, show);
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
