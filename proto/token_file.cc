#include "proto/token_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/file_handle.h"

namespace ddprun {
namespace {

constexpr mode_t kOthers = S_IRWXO;
constexpr mode_t kGroup = S_IRWXG;

SecretFacts facts_of(int fd, const struct stat& status) {
  SecretFacts facts{.owner = status.st_uid,
                    .group = status.st_gid,
                    .mode = status.st_mode & 07777,
                    .self = ::geteuid(),
                    .groups = {::getegid()}};
  struct statfs system {};
  if (::fstatfs(fd, &system) == 0)
    facts.is_read_only_memory = (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC) &&
                                (static_cast<unsigned long>(system.f_flags) & ST_RDONLY) != 0;
  const int count = ::getgroups(0, nullptr);
  std::vector<gid_t> further(static_cast<std::size_t>(std::max(count, 0)));
  const int got = ::getgroups(static_cast<int>(further.size()), further.data());
  further.resize(static_cast<std::size_t>(std::max(got, 0)));
  facts.groups.insert(facts.groups.end(), further.begin(), further.end());
  return facts;
}

// At most one byte more than allowed, to tell a file that is too long.
std::string read_some(int fd) {
  std::string content(kMaxTokenBytes + 1, '\0');
  std::size_t size = 0;
  while (size < content.size()) {
    const ssize_t got = ::read(fd, content.data() + size, content.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    size += static_cast<std::size_t>(got);
  }
  content.resize(size);
  return content;
}

}  // namespace

bool is_secret(const SecretFacts& facts) {
  if (facts.owner != facts.self && facts.owner != 0) return false;
  if ((facts.mode & (kGroup | kOthers)) == 0) return true;
  if (facts.owner != 0) return false;
  if (facts.is_read_only_memory) return true;
  return facts.self != 0 && (facts.mode & (kOthers | S_IWGRP)) == 0 &&
         std::ranges::find(facts.groups, facts.group) != facts.groups.end();
}

std::optional<std::string> exposure_of(int fd, const std::string& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return std::generic_category().message(errno);
  const SecretFacts facts = facts_of(fd, status);
  if (is_secret(facts)) return std::nullopt;
  if (facts.owner != facts.self && facts.owner != 0)
    return fmt::format("it belongs to another user (uid {}), who can read it; type: chown {} '{}'",
                       facts.owner, facts.self, path);
  return fmt::format("others can read it (mode {:04o}); type: chmod 600 '{}'", facts.mode, path);
}

// A file that cannot be read gives no bytes, and so an empty token.
Result<std::string> read_token_file(const std::string& path, const std::string& named) {
  const FileHandle file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string content = file.get() < 0 ? std::string() : read_some(file.get());
  const bool is_too_long = content.size() > kMaxTokenBytes;
  constexpr const char* kBlanks = " \t\r\n";
  content.erase(content.find_last_not_of(kBlanks) + 1);
  content.erase(0, content.find_first_not_of(kBlanks));
  if (content.empty() || is_too_long)
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{}: expected a readable file with a token of 1 to {} bytes", named,
                             kMaxTokenBytes));
  if (const auto exposed = exposure_of(file.get(), path))
    return Error(ErrorCode::kInvalidArgument, fmt::format("{}: {}", named, *exposed));
  return content;
}

}  // namespace ddprun
