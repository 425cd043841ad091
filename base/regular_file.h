// Reads of files that another process may have put there: a worker, or a user of the same host. A
// FIFO would be waited for without end, and a device may do anything. Any thread.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <cstddef>
#include <string>

#include "base/file_handle.h"

namespace ddprun {

// Opens a regular file to read. Holds none if there is no such file, or it is a link. `no_link` is
// 0 for a path that the user has given, which may be one.
inline FileHandle open_regular_file(const std::string& path, int no_link = O_NOFOLLOW) {
  FileHandle file(::open(path.c_str(), O_RDONLY | no_link | O_NONBLOCK | O_CLOEXEC));
  struct stat facts {};
  if (file.get() >= 0 && (::fstat(file.get(), &facts) != 0 || !S_ISREG(facts.st_mode)))
    file.close();
  return file;
}

// The first `most` bytes of a regular file, or what there is of them.
inline std::string read_file_start(const std::string& path, std::size_t most,
                                   int no_link = O_NOFOLLOW) {
  const FileHandle file = open_regular_file(path, no_link);
  std::string text(file.get() < 0 ? 0 : most, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + size, text.size() - size);
    if (got <= 0) break;
    size += static_cast<std::size_t>(got);
  }
  text.resize(size);
  return text;
}

}  // namespace ddprun
