#include "agent/processes/owner_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "agent/processes/job_cookie.h"
#include "agent/processes/scratch_folder.h"
#include "proto/assert.h"

namespace ddprun::agent {
namespace {

constexpr mode_t kMode = 0600;

std::string path_of(const std::string& job_cookie) {
  DDPRUN_ASSERT(!job_cookie.empty());
  return fmt::format("{}/{}{}", kScratchBase, kLockPrefix, job_cookie);
}

bool lock(const FileHandle& file) { return ::flock(file.get(), LOCK_EX | LOCK_NB) == 0; }

// A file without a name gets its name when it is locked. A file system without such files
// (open(2), O_TMPFILE) has it under another name first, which no sweep looks at.
bool make_locked(FileHandle& file, const std::string& path) {
  file = FileHandle(::open(kScratchBase, O_TMPFILE | O_RDWR | O_CLOEXEC, kMode));
  if (file.get() >= 0) {
    const std::string nameless = fmt::format("/proc/self/fd/{}", file.get());
    return lock(file) &&
           ::linkat(AT_FDCWD, nameless.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0;
  }
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT && errno != EINVAL) return false;
  const std::string draft =
      fmt::format("{}/ddprun_new{}", kScratchBase, path.substr(path.rfind('-')));
  file = FileHandle(::open(draft.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, kMode));
  if (file.get() < 0) return false;
  if (lock(file) && ::rename(draft.c_str(), path.c_str()) == 0) return true;
  const int why = errno;
  ::unlink(draft.c_str());
  errno = why;
  return false;
}

// Nothing: the launcher lives, or the file is none of ours to judge.
std::optional<GoneJob> take_if_gone(const std::string& name) {
  const auto cookie = parse_job_cookie(std::string_view(name).substr(std::strlen(kLockPrefix)));
  // The whole name must be the cookie. A shorter text would be the beginning of others' names.
  if (!cookie || kLockPrefix + cookie->text() != name || cookie->unique.size() != kUniqueLength)
    return std::nullopt;
  const std::string path = fmt::format("{}/{}", kScratchBase, name);
  // O_NONBLOCK: somebody may have put a FIFO there.
  FileHandle file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat facts {};
  if (file.get() < 0 || ::fstat(file.get(), &facts) != 0 || !S_ISREG(facts.st_mode))
    return std::nullopt;
  // A root of its own user namespace sees what others own there.
  const uid_t self = ::geteuid();
  if ((self != 0 && facts.st_uid != self) || !lock(file)) return std::nullopt;
  // Another sweep removed the name between open() and lock(): then it has done all.
  struct stat now {};
  if (::lstat(path.c_str(), &now) != 0 || now.st_ino != facts.st_ino) return std::nullopt;
  return GoneJob{cookie->text(), facts.st_uid, std::move(file)};
}

}  // namespace

Result<FileHandle> take_owner_lock(const std::string& job_cookie) {
  const std::string path = path_of(job_cookie);
  FileHandle file;
  if (make_locked(file, path)) return file;
  return Error(ErrorCode::kSystem,
               fmt::format("make the locked file {}: {}", path, ::strerrordesc_np(errno)));
}

void remove_owner_lock(const std::string& job_cookie) { ::unlink(path_of(job_cookie).c_str()); }

std::vector<GoneJob> take_gone_jobs() {
  std::vector<GoneJob> gone;
  std::error_code failed;
  for (std::filesystem::directory_iterator at(kScratchBase, failed), end; !failed && at != end;
       at.increment(failed)) {
    const std::string name = at->path().filename();
    if (!name.starts_with(kLockPrefix)) continue;
    if (auto job = take_if_gone(name)) gone.push_back(std::move(*job));
  }
  return gone;
}

}  // namespace ddprun::agent
