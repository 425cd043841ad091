#include "agent/output/log_pipes.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/limit_hint.h"

namespace ddprun::agent {
namespace {

// Call after each read. The stream keeps the turn while its long line goes on, and frees it when
// the line has ended.
void settle_turn(StreamSink& sink) {
  if (sink.in_long_line()) {
    sink.console().hold_turn(&sink, now());
  } else {
    sink.console().release_turn(&sink);
  }
}

}  // namespace

Result<FileHandle> LogPipes::open(std::unique_ptr<StreamSink> sink) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return Error(ErrorCode::kLimit, "make a log pipe: " + describe_errno(errno));
  // Only our end must not block. A worker does not expect EAGAIN from a write to its stdout. The
  // two ends are two open files, so the flag does not reach the worker's.
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  ::fcntl(ends[0], F_SETPIPE_SZ, kPipeBytes);  // if refused, the default size will do
  if (!buffer_) buffer_ = std::make_unique_for_overwrite<std::array<char, kReadBytes>>();
  pipes_.push_back(std::make_shared<Pipe>(
      Pipe{asio::posix::stream_descriptor(loop_, ends[0]), std::move(sink)}));
  arm(pipes_.back());
  return FileHandle(ends[1]);
}

// Waits for the next bytes of the pipe; each wait calls back once. drain() may end the pipe while a
// callback is queued already: hence both looks at `ended`.
void LogPipes::arm(const std::shared_ptr<Pipe>& pipe) {
  if (pipe->ended) return;
  pipe->reader.async_wait(asio::posix::stream_descriptor::wait_read,
                          [this, pipe](boost::system::error_code error) {
                            if (!error && !pipe->ended) readable(pipe);
                          });
}

// One read for each time that the loop comes here, so that all streams get their turn.
void LogPipes::readable(const std::shared_ptr<Pipe>& pipe) {
  if (!pipe->sink->console().takes(pipe->sink.get())) {
    park(pipe);
    return;
  }
  const ReadResult result = read_some(*pipe);
  alarm_.set_no_later_than(
      std::min(pipe->sink->look_again_at(), pipe->sink->console().turn().stalled_at()));
  if (result == ReadResult::kEnded) {
    // The pipe stays in the list until drain(): its sink may still hold lines back.
    pipe->reader.close();
  } else {
    arm(pipe);
  }
}

// Leaves the pipe unread until the console has room. Meanwhile it fills up, and then the worker
// waits in its write(2).
void LogPipes::park(const std::shared_ptr<Pipe>& pipe) {
  pipe->sink->console().when_ready([this, pipe] {
    // The console kept this stream waiting; the worker did not stall. So its time starts anew.
    // Only if it has the turn: it may have been interrupted, and another stream has it now.
    StreamSink& sink = *pipe->sink;
    if (sink.console().turn().is_held_by(&sink)) settle_turn(sink);
    arm(pipe);
  });
}

// One read, passed on to the sink. 0 bytes mean that no process has the write end any more.
LogPipes::ReadResult LogPipes::read_some(Pipe& pipe) {
  const ssize_t got = ::read(pipe.reader.native_handle(), buffer_->data(), buffer_->size());
  if (got < 0) return errno == EINTR ? ReadResult::kMore : ReadResult::kNothingNow;
  pipe.ended = got == 0;
  pipe.bytes_read += static_cast<std::uint64_t>(got);
  if (pipe.ended) {
    pipe.sink->finish(now());
  } else {
    pipe.sink->take({buffer_->data(), static_cast<std::size_t>(got)}, now());
  }
  settle_turn(*pipe.sink);
  return pipe.ended ? ReadResult::kEnded : ReadResult::kMore;
}

// Reads on, but not beyond the pipe's content now. A process may write as fast as we read, and this
// would never return.
void LogPipes::read_held(Pipe& pipe) {
  int held = 0;
  ::ioctl(pipe.reader.native_handle(), FIONREAD, &held);
  const std::uint64_t last = pipe.bytes_read + static_cast<std::uint64_t>(held);
  // `<=` and not `<`: after the last byte, one more read finds the end of the stream.
  while (!pipe.ended && pipe.bytes_read <= last && read_some(pipe) == ReadResult::kMore) {
  }
}

// Nobody should write any more, but one that SIGKILL did not end may.
void LogPipes::read_rest(Pipe& pipe) {
  read_held(pipe);
  if (!std::exchange(pipe.ended, true)) pipe.sink->finish(now());
  pipe.sink->console().release_turn(pipe.sink.get());
  pipe.reader.close();
}

void LogPipes::catch_up() {
  for (const auto& pipe : pipes_) {
    if (pipe->ended || !pipe->sink->console().takes(pipe->sink.get())) continue;
    read_held(*pipe);
    if (pipe->ended) pipe->reader.close();
  }
  time_passed();
}

void LogPipes::drain() {
  // A stream in the middle of a long line ends that line first. Otherwise the others' lines would
  // be shown in the middle of it.
  std::stable_partition(pipes_.begin(), pipes_.end(), [](const auto& pipe) {
    return pipe->sink->console().turn().is_held_by(pipe->sink.get());
  });
  for (const auto& pipe : pipes_) read_rest(*pipe);
  // Only now: the streams fold together, and a line of the last pipe may equal one of the first.
  for (const auto& pipe : pipes_) pipe->sink->time_passed(Time::max());
  pipes_.clear();
  alarm_.set(Time::max());
}

void LogPipes::time_passed() {
  const Time at = now();
  Time next = Time::max();
  for (const auto& pipe : pipes_) next = std::min(next, look(*pipe, at));
  alarm_.set_no_later_than(next);
}

// Does for one stream what is due now. Returns when to look again.
Time LogPipes::look(Pipe& pipe, Time now) {
  StreamSink& sink = *pipe.sink;
  Console& console = sink.console();
  if (console.turn().is_held_by(&sink) && now >= console.turn().stalled_at()) {
    if (console.full()) {
      console.hold_turn(&sink, now);  // we keep the stream waiting, so it did not stall
    } else {
      sink.interrupt();
      console.release_turn(&sink);
    }
  }
  if (!console.turn().is_free_for(&sink)) return console.turn().stalled_at();
  sink.time_passed(now);
  return std::min(sink.look_again_at(), console.turn().stalled_at());
}

}  // namespace ddprun::agent
