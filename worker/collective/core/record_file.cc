#include "worker/collective/core/record_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>

#include "base/file_handle.h"
#include "base/random_number.h"

namespace ddprun::worker {
namespace {

int write_whole(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno != EINTR) return errno;
    if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

int replace(const std::string& path, std::string_view text) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  constexpr mode_t kMode = 0666;  // less the umask
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  const std::string draft = folder + ".ddprun-" + std::to_string(random_number());
  FileHandle file(::open(draft.c_str(), kFlags, kMode));
  if (file.get() < 0) return errno;
  int failed = write_whole(file.get(), text);
  if (failed == 0 && ::close(file.release()) != 0) failed = errno;
  if (failed == 0 && ::rename(draft.c_str(), path.c_str()) != 0) failed = errno;
  if (failed != 0) ::unlink(draft.c_str());
  return failed;
}

}  // namespace

// First under another name: a reader of `path` never finds half of it. Others may write the folder:
// nobody can guess the name, and no link is followed.
std::error_code write_record_file(const std::string& path, std::string_view text) {
  return {replace(path, text), std::generic_category()};
}

}  // namespace ddprun::worker
