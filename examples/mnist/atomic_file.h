// Replaces a file so that whoever reads it, also after a crash or a kill at any moment, finds
// either all of the old bytes or all of the new ones. One writer a path. Any thread; blocks until
// the disk has it.
#pragma once

#include <filesystem>
#include <string_view>

#include "proto/result.h"

namespace ddprun::examples {

// Writes `bytes` to `<path>.tmp` beside `path`, flushes it to disk, renames it over `path` and
// flushes the folder. On an error, which names the step and the file, `path` is as it was and the
// temporary file is gone.
Result<void> write_file_atomically(const std::filesystem::path& path, std::string_view bytes);

// Whether write_file_atomically could create `path` at all: its folder exists and can be written,
// and `path` is no folder. For telling the user before hours of work rather than after them.
Result<void> check_replaceable(const std::filesystem::path& path);

}  // namespace ddprun::examples
