#include "examples/readers/file_text.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>

namespace ddprun::readers {
namespace {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

Error system_error(const std::filesystem::path& path, int code) {
  return {code == ENOENT ? ErrorCode::kNotFound : ErrorCode::kSystem,
          fmt::format("read {}: {}", path.string(), std::generic_category().message(code))};
}

}  // namespace

Error broken_file(const std::filesystem::path& path, const std::string& what) {
  return {ErrorCode::kProtocol, fmt::format("read {}: {}", path.string(), what)};
}

Result<std::string> read_file(const std::filesystem::path& path, std::size_t most) {
  const std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "rbe"));
  if (!file) return system_error(path, errno);
  std::error_code unknown;
  const auto size = std::filesystem::file_size(path, unknown);
  if (unknown) return system_error(path, unknown.value());
  if (size > most)
    return broken_file(path, fmt::format("{} bytes, at most {} are read", size, most));
  std::string bytes(size, '\0');
  const std::size_t got = std::fread(bytes.data(), 1, bytes.size(), file.get());
  if (std::ferror(file.get()) != 0) return system_error(path, errno);
  if (got < bytes.size()) return broken_file(path, "became shorter while it was read");
  return bytes;
}

}  // namespace ddprun::readers
