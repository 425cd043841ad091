// A whole file in memory, and the error that names it. Any thread.
#pragma once

#include <ddprun/readers.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <type_traits>
#include <utility>

#include "base/result.h"

namespace ddprun::readers {

// A data set's file that is longer is not one of ours.
inline constexpr std::size_t kMaxFileBytes = std::size_t{2} << 30;

// Errors name the file: not there (kNotFound), not readable, longer than `most` bytes.
Result<std::string> read_file(const std::filesystem::path& path, std::size_t most = kMaxFileBytes);

// `read PATH: WHAT`, for bytes that make no sense.
Error broken_file(const std::filesystem::path& path, const std::string& what);

// The value, or ReadError.
template <typename T>
T value_or_throw(Result<T> result) {
  if (!result) throw ReadError(result.error().message());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

}  // namespace ddprun::readers
