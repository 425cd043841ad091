#include "agent/output/log_pipes.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace ddprun::agent {
namespace {

// The turn follows the line: kept as long as that goes on, passed on when it has ended.
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
    return Error(ErrorCode::kSystem, std::string("make a log pipe: ") + ::strerrordesc_np(errno));
  // Only our end must not block; the flag belongs to the open file, and the two ends are two.
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  ::fcntl(ends[0], F_SETPIPE_SZ, kPipeBytes);  // refused: the default will do
  if (!buffer_) buffer_ = std::make_unique_for_overwrite<std::array<char, kReadBytes>>();
  pipes_.push_back(std::make_shared<Pipe>(
      Pipe{asio::posix::stream_descriptor(loop_, ends[0]), std::move(sink)}));
  arm(pipes_.back());
  return FileHandle(ends[1]);
}

void LogPipes::arm(const std::shared_ptr<Pipe>& pipe) {
  if (pipe->ended) return;
  pipe->reader.async_wait(asio::posix::stream_descriptor::wait_read,
                          [this, pipe](boost::system::error_code error) {
                            if (!error && !pipe->ended) readable(pipe);
                          });
}

void LogPipes::readable(const std::shared_ptr<Pipe>& pipe) {
  if (!pipe->sink->console().takes(pipe->sink.get())) {
    park(pipe);
    return;
  }
  const ReadResult result = read_some(*pipe);
  alarm_.set_no_later_than(
      std::min(pipe->sink->look_again_at(), pipe->sink->console().turn().stalled_at()));
  if (result == ReadResult::kEnded) {
    pipe->reader.close();
  } else {
    arm(pipe);
  }
}

void LogPipes::park(const std::shared_ptr<Pipe>& pipe) {
  pipe->sink->console().when_ready([this, pipe] {
    // It was the console that kept it waiting, not the worker that stalled.
    if (pipe->sink->in_long_line()) settle_turn(*pipe->sink);
    arm(pipe);
  });
}

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

// To its end, or to the end of what the pipe holds now. Nobody should write any more; but a process
// that SIGKILL does not end may, as fast as we read.
void LogPipes::read_rest(Pipe& pipe) {
  int held = 0;
  ::ioctl(pipe.reader.native_handle(), FIONREAD, &held);
  const std::uint64_t last = pipe.bytes_read + static_cast<std::uint64_t>(held);
  while (!pipe.ended && pipe.bytes_read <= last && read_some(pipe) == ReadResult::kMore) {
  }
  if (!std::exchange(pipe.ended, true)) pipe.sink->finish(now());
  pipe.sink->console().release_turn(pipe.sink.get());
  pipe.reader.close();
}

void LogPipes::drain() {
  // Who is in the middle of a line ends it first.
  std::stable_partition(pipes_.begin(), pipes_.end(),
                        [](const auto& pipe) { return pipe->sink->in_long_line(); });
  for (const auto& pipe : pipes_) read_rest(*pipe);
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

// Does for one stream what is due; when to look again.
Time LogPipes::look(Pipe& pipe, Time now) {
  StreamSink& sink = *pipe.sink;
  Console& console = sink.console();
  if (console.turn().is_held_by(&sink) && now >= console.turn().stalled_at()) {
    if (console.full()) {
      console.hold_turn(&sink, now);  // it is us who keep it waiting
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
