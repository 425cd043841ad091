// Replaces a file as a whole. A reader finds either all of the old bytes or all of the new ones.
// The writer may be killed at any moment. This holds after a crash of the machine too. File system
// and disk must keep the promises of fsync(2) and rename(2). A killed writer leaves its temporary
// file; the next writer overwrites it. A symbolic link is replaced itself, not the file it points
// to. The new file has mode 0644. A path must have only one writer at a time. One thread; blocks
// until the disk has the bytes.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

#include "base/result.h"

namespace ddprun::worker {

class AtomicFile {
 public:
  // Makes `<path>.tmp` beside `path`. An error of this and of all that follows names the step and
  // the file.
  static Result<AtomicFile> create(const std::filesystem::path& path);

  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  // Removes the temporary file, unless commit() has renamed it.
  ~AtomicFile();

  // Appends. After an error only the destructor may follow.
  Result<void> write(std::span<const std::byte> bytes);

  // Flushes the file to disk, renames it over `path` and flushes the folder. After an error `path`
  // is as it was. If only the last step failed, `path` has the new bytes. But a crash of the
  // machine may bring the old ones back. `other`, where it is not empty, is replaced before: by a
  // second name of the file (also_name()). A process that is killed in between leaves the new bytes
  // there, and the old ones in `path`.
  Result<void> commit(const std::filesystem::path& other = {});

 private:
  AtomicFile(std::filesystem::path path, std::filesystem::path temporary, int fd);

  Result<void> write_out();

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int fd_;                         // -1: moved from, or committed
  std::vector<std::byte> buffer_;  // small pieces, for one write(2)
};

// Gives the file a second name, atomically: `other` is replaced. The two names part when one of
// them is replaced. If the file system has no hard links, the bytes are copied.
Result<void> also_name(const std::filesystem::path& path, const std::filesystem::path& other);

// Whether an AtomicFile can replace `path`. The folder must exist and be writable. `path` must be a
// regular file or not exist yet. A rename would put a file in the place of a device or a pipe. Call
// it at the start, so that the user hears of it before hours of work and not after them.
Result<void> check_replaceable(const std::filesystem::path& path);

}  // namespace ddprun::worker
