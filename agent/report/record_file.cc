#include "agent/report/record_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "proto/file_handle.h"

namespace ddprun::agent {
namespace {

// Something is at `path` itself that must not be replaced.
bool is_special(const std::string& path) {
  struct stat facts {};
  return ::lstat(path.c_str(), &facts) == 0 && !S_ISREG(facts.st_mode);
}

Error failed(const std::string& path, int why) {
  return {ErrorCode::kSystem, fmt::format("write {}: {}", path, ::strerrordesc_np(why))};
}

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

// Our stdout or stderr where `facts` is what that is on; -1 where it is neither.
int own_stream(const struct stat& facts) {
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat own {};
    if (::fstat(fd, &own) == 0 && own.st_dev == facts.st_dev && own.st_ino == facts.st_ino)
      return fd;
  }
  return -1;
}

// 0, or why not.
int write_all(int fd, std::string_view text) {
  const auto deadline = std::chrono::steady_clock::now() + kRecordWait;
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written >= 0) text.remove_prefix(static_cast<std::size_t>(written));
    if (written >= 0 || errno == EINTR) continue;
    if (errno != EAGAIN) return errno;
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return ETIMEDOUT;
    pollfd writable{fd, POLLOUT, 0};
    ::poll(&writable, 1, static_cast<int>(left.count()));
  }
  return 0;
}

// O_NONBLOCK: a FIFO that nobody reads is an error (ENXIO, fifo(7)), no reason to wait for ever.
Result<void> write_through(const std::string& path, std::string_view text) {
  constexpr int kFlags = O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY;
  constexpr mode_t kMode = 0666;
  FileHandle file(::open(path.c_str(), kFlags));
  if (file.get() < 0 && errno == ENOENT)  // a link to a file that is not there yet
    file = FileHandle(::open(path.c_str(), kFlags | O_CREAT, kMode));
  struct stat facts {};
  if (file.get() < 0 || ::fstat(file.get(), &facts) != 0) return failed(path, errno);
  int target = file.get();
  if (S_ISREG(facts.st_mode)) {
    const int own = own_stream(facts);
    if (own >= 0) target = own;  // its offset is where the output ends
    if (own < 0 && ::ftruncate(target, 0) != 0) return failed(path, errno);
  }
  const int why = write_all(target, text);
  if (why != 0) return failed(path, why);
  return {};
}

Result<void> replace(const std::string& path, std::string_view text) {
  const std::string draft = fmt::format("{}.{}", path, ::getpid());
  std::ofstream file(draft, std::ios::binary);
  file << text;
  file.close();
  if (file && std::rename(draft.c_str(), path.c_str()) == 0) return {};
  const int why = errno;
  ::unlink(draft.c_str());
  return failed(path, why);
}

}  // namespace

Result<void> can_write_record(const std::string& path) {
  struct stat facts {};
  const bool is_there = ::stat(path.c_str(), &facts) == 0;
  if (is_there && S_ISDIR(facts.st_mode))
    return Error(ErrorCode::kInvalidArgument, "it is a folder");
  const bool can = is_there && is_special(path)
                       ? ::access(path.c_str(), W_OK) == 0
                       : ::access(folder_of(path).c_str(), W_OK | X_OK) == 0;
  if (!can) return Error(ErrorCode::kInvalidArgument, ::strerrordesc_np(errno));
  return {};
}

Result<void> write_record(const std::string& path, std::string_view text) {
  return is_special(path) ? write_through(path, text) : replace(path, text);
}

}  // namespace ddprun::agent
