#include "examples/mnist/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>

namespace ddprun::examples {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  Descriptor(Descriptor&&) = delete;
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }

  int get() const { return fd_; }

 private:
  int fd_;
};

// Reads errno: call it before anything else can change it.
Error failed(const char* step, const std::filesystem::path& path) {
  return {ErrorCode::kSystem,
          fmt::format("{} {}: {}", step, path.string(), std::generic_category().message(errno))};
}

// write(2) may take fewer bytes than it was given. If the disk is full, the next call says so.
Result<void> write_all(int fd, std::string_view bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed("write", path);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

Result<void> write_and_flush(const std::filesystem::path& path, std::string_view bytes) {
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (file.get() < 0) return failed("create", path);
  if (auto written = write_all(file.get(), bytes, path); !written) return written;
  // Must come before the rename. Otherwise a crash of the machine may leave the new name without
  // its bytes.
  if (::fsync(file.get()) != 0) return failed("flush", path);
  return {};
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

// A rename changes the folder, and only a flush of the folder brings that to disk (fsync(2)).
Result<void> flush_folder_of(const std::filesystem::path& path) {
  const std::filesystem::path folder = folder_of(path);
  const Descriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor.get() < 0 || ::fsync(descriptor.get()) != 0) return failed("flush", folder);
  return {};
}

}  // namespace

Result<void> write_file_atomically(const std::filesystem::path& path, std::string_view bytes) {
  // Beside `path`: rename(2) is atomic only inside one file system.
  std::filesystem::path temporary = path;
  temporary += ".tmp";
  auto written = write_and_flush(temporary, bytes);
  if (written && ::rename(temporary.c_str(), path.c_str()) != 0) written = failed("replace", path);
  if (!written) {
    ::unlink(temporary.c_str());
    return written;
  }
  return flush_folder_of(path);
}

Result<void> check_replaceable(const std::filesystem::path& path) {
  const std::filesystem::path folder = folder_of(path);
  // An error here (no permission to look, for example) shows again in the check of the folder.
  std::error_code unknown;
  const auto found = std::filesystem::status(path, unknown);
  if (std::filesystem::exists(found) && !std::filesystem::is_regular_file(found)) {
    return Error(
        ErrorCode::kInvalidArgument,
        fmt::format("'{}' given, expected a regular file or the name of a new one", path.string()));
  }
  // The dot: a `folder` that is a file must fail, too.
  if (::access((folder / ".").c_str(), W_OK | X_OK) != 0) return failed("write to folder", folder);
  return {};
}

}  // namespace ddprun::examples
