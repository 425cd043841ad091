#include "agent/processes/owner_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "agent/processes/folder_names.h"
#include "agent/processes/job_cookie.h"
#include "agent/processes/scratch_folder.h"
#include "base/assert.h"
#include "base/limit_hint.h"
#include "base/random_number.h"

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

// Nothing if the launcher lives, or the file is none of ours to judge.
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
  return GoneJob{cookie->text(), cookie->pid_namespace, facts.st_uid, std::move(file)};
}

constexpr std::size_t kMostLooked = 2048;
constexpr std::size_t kMostOfOthers = 64;

// Returns the owner of a regular file. Nothing if it is something else, or gone.
std::optional<uid_t> owner_of_lock(const std::string& name) {
  struct stat facts {};
  const std::string path = fmt::format("{}/{}", kScratchBase, name);
  if (::lstat(path.c_str(), &facts) != 0 || !S_ISREG(facts.st_mode)) return std::nullopt;
  return facts.st_uid;
}

}  // namespace

Result<FileHandle> take_owner_lock(const std::string& job_cookie) {
  const std::string path = path_of(job_cookie);
  FileHandle file;
  if (make_locked(file, path)) return file;
  return Error(ErrorCode::kSystem,
               fmt::format("make the locked file {}: {}", path, describe_errno(errno)));
}

void remove_owner_lock(const std::string& job_cookie) { ::unlink(path_of(job_cookie).c_str()); }

// Every user may make names there, and each start reads them. So it looks at kMostLooked of them,
// from a random one on. Another start finds those that are left out now. Root ends other users'
// jobs too, but not where there are more than kMostOfOthers: then somebody floods the folder.
std::vector<GoneJob> take_gone_jobs() {
  const std::vector<std::string> names = names_in(kScratchBase, kLockPrefix);
  std::vector<std::string> own;
  std::vector<std::string> of_others;
  const std::size_t count = std::min(names.size(), kMostLooked);
  const std::size_t first = count < names.size() ? random_number() % names.size() : 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string& name = names[(first + i) % names.size()];
    if (const auto owner = owner_of_lock(name))
      (*owner == ::geteuid() ? own : of_others).push_back(name);
  }
  if (::geteuid() == 0 && of_others.size() <= kMostOfOthers)
    own.insert(own.end(), of_others.begin(), of_others.end());
  std::vector<GoneJob> gone;
  for (const std::string& name : own) {
    if (auto job = take_if_gone(name)) gone.push_back(std::move(*job));
  }
  return gone;
}

}  // namespace ddprun::agent
