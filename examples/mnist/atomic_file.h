// Replaces a file so that whoever reads it, also after a kill of the writer at any moment, finds
// either all of the old bytes or all of the new ones; after a crash of the machine too, as far as
// file system and disk keep what they promise about fsync and rename. A killed writer leaves its
// temporary file, which the next one overwrites. The new file has mode 0644, and takes the place of
// a symbolic link rather than of what that points to. One writer a path. Any thread; blocks until
// the disk has it.
#pragma once

#include <filesystem>
#include <string_view>

#include "proto/result.h"

namespace ddprun::examples {

// Writes `bytes` to `<path>.tmp` beside `path`, flushes it to disk, renames it over `path` and
// flushes the folder. On an error, which names the step and the file, `path` is as it was and the
// temporary file is gone; except where only the last step failed: then `path` has the new bytes,
// but a crash of the machine may bring the old ones back.
Result<void> write_file_atomically(const std::filesystem::path& path, std::string_view bytes);

// Whether write_file_atomically could create `path` at all: its folder exists and can be written,
// and `path` is a regular file or nothing yet: a rename would put a file in the place of a device
// or a pipe. For telling the user before hours of work rather than after them.
Result<void> check_replaceable(const std::filesystem::path& path);

}  // namespace ddprun::examples
