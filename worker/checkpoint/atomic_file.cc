#include "worker/checkpoint/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>
#include <utility>

namespace ddprun::worker {
namespace {

// Pieces below this are collected.
constexpr std::size_t kBufferBytes = std::size_t{1} << 18;

// Reads errno: call it before anything else can change it.
Error failed(const char* step, const std::filesystem::path& path) {
  return {ErrorCode::kSystem,
          fmt::format("{} {}: {}", step, path.string(), std::generic_category().message(errno))};
}

// write(2) may take fewer bytes than it was given. If the disk is full, the next call says so.
Result<void> write_all(int fd, std::span<const std::byte> bytes,
                       const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed("write", path);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

// A rename changes the folder, and only a flush of the folder brings that to disk (fsync(2)).
Result<void> flush_folder_of(const std::filesystem::path& path) {
  const std::filesystem::path folder = folder_of(path);
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool flushed = fd >= 0 && ::fsync(fd) == 0;
  Result<void> result;
  if (!flushed) result = failed("flush", folder);
  if (fd >= 0) ::close(fd);
  return result;
}

// Beside `path`: rename(2) is atomic only inside one file system.
std::filesystem::path temporary_of(const std::filesystem::path& path) {
  std::filesystem::path temporary = path;
  temporary += ".tmp";
  return temporary;
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path, std::filesystem::path temporary, int fd)
    : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      fd_(std::exchange(other.fd_, -1)),
      buffer_(std::move(other.buffer_)) {}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

Result<AtomicFile> AtomicFile::create(const std::filesystem::path& path) {
  std::filesystem::path temporary = temporary_of(path);
  // A file that is left there may be a second name of a good file: it is not written to.
  ::unlink(temporary.c_str());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return failed("create", temporary);
  return AtomicFile(path, std::move(temporary), fd);
}

Result<void> AtomicFile::write_out() {
  auto written = write_all(fd_, buffer_, temporary_);
  buffer_.clear();
  return written;
}

Result<void> AtomicFile::write(std::span<const std::byte> bytes) {
  if (buffer_.size() + bytes.size() > kBufferBytes) {
    if (auto written = write_out(); !written) return written;
  }
  if (bytes.size() > kBufferBytes) return write_all(fd_, bytes, temporary_);
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  return {};
}

Result<void> AtomicFile::commit(const std::filesystem::path& other) {
  if (auto written = write_out(); !written) return written;
  // Must come before the rename. Otherwise a crash of the machine may leave the new name without
  // its bytes.
  if (::fsync(fd_) != 0) return failed("flush", temporary_);
  if (!other.empty()) {
    if (auto named = also_name(temporary_, other); !named) return named;
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return failed("replace", path_);
  ::close(std::exchange(fd_, -1));
  return flush_folder_of(path_);
}

Result<void> also_name(const std::filesystem::path& path, const std::filesystem::path& other) {
  const std::filesystem::path temporary = temporary_of(other);
  ::unlink(temporary.c_str());
  if (::link(path.c_str(), temporary.c_str()) != 0) {
    std::error_code failure;
    std::filesystem::copy_file(path, temporary, failure);
    const int fd = failure ? -1 : ::open(temporary.c_str(), O_RDONLY | O_CLOEXEC);
    const bool flushed = fd >= 0 && ::fsync(fd) == 0;
    if (fd >= 0) ::close(fd);
    if (!flushed) {
      return Error(ErrorCode::kSystem,
                   fmt::format("name {} {} too: {}", path.string(), other.string(),
                               failure ? failure.message() : "it cannot be flushed"));
    }
  }
  if (::rename(temporary.c_str(), other.c_str()) != 0) return failed("replace", other);
  // Two names of one file: rename(2) then leaves both.
  ::unlink(temporary.c_str());
  return flush_folder_of(other);
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

}  // namespace ddprun::worker
