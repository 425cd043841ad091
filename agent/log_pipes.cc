#include "agent/log_pipes.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

namespace ddprun::agent {
namespace {

constexpr std::size_t kReadBytes = std::size_t{64} << 10;  // a pipe's default capacity

// The disk may be full: the console still gets the text, the rest of the file is lost.
void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

Result<FileHandle> LogPipes::open(FileHandle file, std::string prefix, Console& console) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return Error(ErrorCode::kSystem, std::string("make a log pipe: ") + ::strerrordesc_np(errno));
  // Only our end must not block; the flag belongs to the open file, and the two ends are two.
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  pipes_.push_back(
      std::make_shared<Pipe>(Pipe{asio::posix::stream_descriptor(loop_, ends[0]), std::move(file),
                                  LineSplitter(std::move(prefix)), &console}));
  arm(pipes_.back());
  return FileHandle(ends[1]);
}

void LogPipes::arm(const std::shared_ptr<Pipe>& pipe) {
  if (pipe->ended) return;
  pipe->reader.async_wait(asio::posix::stream_descriptor::wait_read,
                          [this, pipe](boost::system::error_code error) {
                            if (error || pipe->ended || read_some(*pipe) == ReadResult::kEnded)
                              return;
                            if (pipe->console->full()) {
                              pipe->console->when_drained([this, pipe] { arm(pipe); });
                            } else {
                              arm(pipe);
                            }
                          });
}

LogPipes::ReadResult LogPipes::read_some(Pipe& pipe) {
  std::array<char, kReadBytes> buffer;
  const ssize_t got = ::read(pipe.reader.native_handle(), buffer.data(), buffer.size());
  if (got < 0) return errno == EINTR ? ReadResult::kMore : ReadResult::kNothingNow;
  if (got == 0) {
    pipe.ended = true;
    pipe.console->write(pipe.lines.finish());
    return ReadResult::kEnded;
  }
  const std::string_view bytes(buffer.data(), static_cast<std::size_t>(got));
  write_all(pipe.file.get(), bytes);
  pipe.console->write(pipe.lines.take(bytes));
  return ReadResult::kMore;
}

void LogPipes::drain() {
  for (const std::shared_ptr<Pipe>& pipe : pipes_) {
    while (!pipe->ended && read_some(*pipe) == ReadResult::kMore) {
    }
    if (!pipe->ended)
      pipe->console->write(pipe->lines.finish());  // a stuck process still holds the write end
    pipe->ended = true;
    pipe->reader.close();
  }
  pipes_.clear();
}

}  // namespace ddprun::agent
