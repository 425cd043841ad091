// Replaces a file as a whole. A reader finds either all of the old bytes or all of the new ones,
// also if the writer is killed at any moment. This holds after a crash of the machine too, if file
// system and disk keep what they promise about fsync(2) and rename(2). A killed writer leaves its
// temporary file; the next writer overwrites it. A symbolic link is replaced itself, not the file
// it points to. The new file has mode 0644. A path must have only one writer at a time. Any thread;
// blocks until the disk has the bytes.
#pragma once

#include <filesystem>
#include <string_view>

#include "proto/result.h"

namespace ddprun::examples {

// Writes `bytes` to `<path>.tmp` beside `path`, flushes it to disk, renames it over `path` and
// flushes the folder. An error names the step and the file. After an error `path` is as it was, and
// the temporary file is gone. If only the last step failed, `path` has the new bytes, but a crash
// of the machine may bring the old ones back.
Result<void> write_file_atomically(const std::filesystem::path& path, std::string_view bytes);

// Whether write_file_atomically can work on `path`. The folder must exist and be writable. `path`
// must be a regular file or not exist yet: a rename would put a file in the place of a device or a
// pipe. Call it at the start, so that the user hears of it before hours of work and not after them.
Result<void> check_replaceable(const std::filesystem::path& path);

}  // namespace ddprun::examples
