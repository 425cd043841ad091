// A whole file in memory, and the error that names it. Any thread.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "base/result.h"

namespace ddprun::worker {

// A data set's file that is longer is not one of ours.
inline constexpr std::size_t kMaxFileBytes = std::size_t{2} << 30;

// Errors name the file: not there (kNotFound), not readable, longer than `most` bytes.
Result<std::string> read_file(const std::filesystem::path& path, std::size_t most = kMaxFileBytes);

// `read PATH: WHAT`, for bytes that make no sense.
Error broken_file(const std::filesystem::path& path, const std::string& what);

}  // namespace ddprun::worker
