#include "agent/report/record_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>

#include "base/file_handle.h"
#include "base/limit_hint.h"
#include "base/random_number.h"

namespace ddprun::agent {
namespace {

// Returns whether something is at `path` that must not be replaced. lstat(): a link counts as well.
bool is_special(const std::string& path) {
  struct stat facts {};
  return ::lstat(path.c_str(), &facts) == 0 && !S_ISREG(facts.st_mode);
}

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

// Returns whether another user has put what is at `path` into a folder that others may write, such
// as /tmp. A link there leads where that user wants, and a FIFO tells that user. Files of root, of
// ours and of the folder's owner are trusted, as the kernel does (proc_sys_fs(5),
// protected_symlinks).
std::optional<uid_t> planted_by(const std::string& path) {
  constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;
  struct stat facts {};
  struct stat folder {};
  if (::lstat(path.c_str(), &facts) != 0 || ::stat(folder_of(path).c_str(), &folder) != 0 ||
      (folder.st_mode & kOthersWrite) == 0)
    return std::nullopt;
  const uid_t owner = facts.st_uid;
  if (owner == 0 || owner == ::geteuid() || owner == folder.st_uid) return std::nullopt;
  return owner;
}

Error failed(const std::string& path, int why) {
  return {ErrorCode::kSystem, fmt::format("write {}: {}", path, describe_errno(why))};
}

// The descriptor of our stdout or stderr, if it is open on the file that `facts` describe; else -1.
int own_stream(const struct stat& facts) {
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat own {};
    if (::fstat(fd, &own) == 0 && own.st_dev == facts.st_dev && own.st_ino == facts.st_ino)
      return fd;
  }
  return -1;
}

// Writes all of `text`. Returns 0, or the errno of the failure. `fd` may be non-blocking: waits for
// its reader until kRecordWait has passed.
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

// Writes to what is at `path`, and follows links. O_NONBLOCK: to open a FIFO that nobody reads is
// then an error (ENXIO, fifo(7)). Without it we would wait for ever. O_NOCTTY: a terminal must not
// become ours.
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
    // The offset of our own descriptor is where the output ends. The new one is at the beginning of
    // the file and would overwrite it.
    if (own >= 0) target = own;
    if (own < 0 && ::ftruncate(target, 0) != 0) return failed(path, errno);
  }
  const int why = write_all(target, text);
  if (why != 0) return failed(path, why);
  return {};
}

// It lies in the folder of `path`, since rename(2) does not cross file systems. It is short, so
// that a long name at `path` leaves room for it.
std::string draft_beside(const std::string& path) {
  return fmt::format("{}/.ddprun-{:016x}", folder_of(path), random_number());
}

// Writes a draft beside `path` and renames it to `path`. Others may write the folder. So the draft
// has a name that nobody can guess, and it is made anew, through no link. rename(2) follows none
// either.
Result<void> replace(const std::string& path, std::string_view text) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  constexpr mode_t kMode = 0666;  // less the umask
  const std::string draft = draft_beside(path);
  FileHandle file(::open(draft.c_str(), kFlags, kMode));
  if (file.get() < 0) return failed(path, errno);
  int why = write_all(file.get(), text);
  if (why == 0 && ::close(file.release()) != 0) why = errno;  // a full disk, over a network
  if (why == 0 && ::rename(draft.c_str(), path.c_str()) != 0) why = errno;
  if (why == 0) return {};
  ::unlink(draft.c_str());
  return failed(path, why);
}

// Returns whether a rename may take the place of another user's file. In a folder with the sticky
// bit only the folder's owner and root may (unlink(2)).
bool can_replace(const std::string& path) {
  struct stat folder {};
  return ::stat(folder_of(path).c_str(), &folder) == 0 &&
         ((folder.st_mode & S_ISVTX) == 0 || folder.st_uid == ::geteuid() || ::geteuid() == 0);
}

Error foreign(uid_t owner) {
  return {
      ErrorCode::kInvalidArgument,
      fmt::format("it belongs to another user (uid {}); choose a folder that only you may write",
                  owner)};
}

}  // namespace

// A file is replaced by a rename, so its folder must be writable, or the file itself.
Result<void> can_write_record(const std::string& path) {
  struct stat facts {};
  const bool is_there = ::stat(path.c_str(), &facts) == 0;
  if (is_there && S_ISDIR(facts.st_mode))
    return Error(ErrorCode::kInvalidArgument, "it is a folder");
  if (const auto owner = planted_by(path); owner && !can_replace(path)) return foreign(*owner);
  const bool can = is_there && is_special(path)
                       ? ::access(path.c_str(), W_OK) == 0
                       : ::access(folder_of(path).c_str(), W_OK | X_OK) == 0 ||
                             (is_there && ::access(path.c_str(), W_OK) == 0);
  if (!can) return Error(ErrorCode::kInvalidArgument, describe_errno(errno));
  return {};
}

Result<void> write_record(const std::string& path, std::string_view text) {
  if (const auto owner = planted_by(path)) {
    const auto replaced = replace(path, text);
    if (replaced) return {};
    return Error(ErrorCode::kSystem,
                 fmt::format("{}; {}", replaced.error().message(), foreign(*owner).message()));
  }
  if (is_special(path)) return write_through(path, text);
  auto replaced = replace(path, text);
  // A pod's termination message is a mount: nothing is renamed over it, and its folder may be
  // read-only. It is written in place.
  if (replaced || ::access(path.c_str(), W_OK) != 0) return replaced;
  return write_through(path, text);
}

}  // namespace ddprun::agent
