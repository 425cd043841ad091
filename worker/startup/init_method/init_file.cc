#include "worker/startup/init_method/init_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <system_error>
#include <utility>

#include "base/random_number.h"
#include "worker/startup/init_method/init_record.h"

namespace ddprun::worker {
namespace {

std::string text_of(int why) { return std::generic_category().message(why); }

int milliseconds_until(InitFile::Deadline until) {
  using std::chrono::milliseconds;
  const auto left = std::chrono::ceil<milliseconds>(until - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000));
}

// How much of a file was read, and the errno that ended it; 0: none.
struct ReadResult {
  std::size_t size = 0;
  int why = 0;
};

// Reads until `bytes` is full or the file ends.
ReadResult read_all(int file, std::span<char> bytes) {
  ReadResult all;
  while (all.why == 0 && all.size < bytes.size()) {
    const auto got = ::read(file, bytes.data() + all.size, bytes.size() - all.size);
    if (got == 0) break;
    if (got > 0) all.size += static_cast<std::size_t>(got);
    if (got < 0 && errno != EINTR) all.why = errno;
  }
  return all;
}

// Beside the file: rename(2) and link(2) stay inside one file system.
std::string name_beside(const std::string& name) { return name + "." + fresh_id(); }

}  // namespace

std::string fresh_id() { return random_hex(16); }

InitFile::InitFile(const std::string& path, std::string named) : named_(std::move(named)) {
  const auto slash = path.find_last_of('/');
  folder_ = path.substr(0, std::max<std::size_t>(slash, 1));
  name_ = path.substr(slash + 1);
  // This comes before the first look. A change between that and a wait is announced.
  FileHandle watch(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  constexpr std::uint32_t kEvents = IN_CREATE | IN_MOVED_TO | IN_ONLYDIR;
  if (watch.get() >= 0 && ::inotify_add_watch(watch.get(), folder_.c_str(), kEvents) >= 0)
    watch_ = std::move(watch);
}

Error InitFile::error(ErrorCode code, std::string_view what) const {
  return {code, fmt::format("{}: {}", named_, what)};
}

Error InitFile::failed(std::string_view step, int why) const {
  return error(ErrorCode::kSystem, fmt::format("{}: {}", step, text_of(why)));
}

Error InitFile::unwritable(int why) const {
  return failed(fmt::format("write to the folder {}", folder_), why);
}

// Anew each time. A client of NFS keeps for a while that a name is not there. It asks the server
// again when the folder is opened (nfs(5), close-to-open).
Result<FileHandle> InitFile::open_folder() const {
  FileHandle folder(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() >= 0) return folder;
  const int why = errno;
  if (why == ENOENT || why == ENOTDIR)
    return error(ErrorCode::kNotFound, fmt::format("there is no folder {}", folder_));
  return failed(fmt::format("open the folder {}", folder_), why);
}

Result<void> InitFile::may_write() const {
  const auto folder = open_folder();
  if (!folder) return folder.error();
  if (::faccessat(folder->get(), ".", W_OK | X_OK, AT_EACCESS) != 0) return unwritable(errno);
  return {};
}

Result<std::optional<std::string>> InitFile::read_name(int folder, const std::string& name) const {
  // A pipe must not make us wait, and a link may lead to somebody else's file.
  constexpr int kFlags = O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC;
  const FileHandle file(::openat(folder, name.c_str(), kFlags));
  int why = file.get() < 0 ? errno : 0;
  // On NFS another host may have taken it away in this moment.
  if (why == ENOENT || why == ESTALE) return std::optional<std::string>();
  struct stat found {};
  if (why == 0 && ::fstat(file.get(), &found) != 0) why = errno;
  if (why == ELOOP || why == ENXIO || (why == 0 && !S_ISREG(found.st_mode)))
    return error(ErrorCode::kInvalidArgument, "it is no regular file");
  std::array<char, kInitRecordBytes + 1> bytes{};
  const ReadResult got = why == 0 ? read_all(file.get(), bytes) : ReadResult{.why = why};
  if (got.why == ESTALE) return std::optional<std::string>();
  if (got.why != 0) return failed("read it", got.why);
  return std::optional(std::string(bytes.data(), got.size));
}

Result<std::optional<std::string>> InitFile::read() {
  const auto folder = open_folder();
  if (!folder) return folder.error();
  return read_name(folder->get(), name_);
}

// The bytes are on the server before the name is: other hosts read all of them.
Result<void> InitFile::write_new(int folder, const std::string& name,
                                 std::string_view content) const {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
  const FileHandle file(::openat(folder, name.c_str(), kFlags, 0600));
  if (file.get() < 0) return unwritable(errno);
  while (!content.empty()) {
    const auto written = ::write(file.get(), content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed("write it", errno);
    content.remove_prefix(static_cast<std::size_t>(written));
  }
  if (::fsync(file.get()) != 0) return failed("flush it", errno);
  return {};
}

Result<bool> InitFile::create(std::string_view content) {
  const auto folder = open_folder();
  if (!folder) return folder.error();
  const std::string beside = name_beside(name_);
  auto written = write_new(folder->get(), beside, content);
  int why = 0;
  if (written && ::linkat(folder->get(), beside.c_str(), folder->get(), name_.c_str(), 0) != 0)
    why = errno;
  struct stat found {};
  // If an answer of NFS was lost, the link that was asked for again is there already (open(2),
  // O_EXCL).
  const bool is_ours =
      ::fstatat(folder->get(), beside.c_str(), &found, 0) == 0 && found.st_nlink == 2;
  ::unlinkat(folder->get(), beside.c_str(), 0);
  if (!written) return written.error();
  if (is_ours || why == 0) return true;
  if (why == EEXIST) return false;
  if (why == EPERM || why == EOPNOTSUPP || why == ENOSYS)
    return error(ErrorCode::kSystem,
                 "its file system has no hard links, by which ranks agree on who is there: name a "
                 "file elsewhere");
  return failed("name it", why);
}

Result<bool> InitFile::remove(std::string_view content) {
  const auto folder = open_folder();
  if (!folder) return folder.error();
  // Looked at first, so that what is not ours is mostly never moved.
  const auto there = read_name(folder->get(), name_);
  if (!there) return there.error();
  if (!*there) return true;
  if (**there != content) return false;
  const std::string beside = name_beside(name_);
  if (::renameat(folder->get(), name_.c_str(), folder->get(), beside.c_str()) != 0) {
    if (errno == ENOENT) return true;
    return failed("take it away", errno);
  }
  // Another process may have put its own there since we looked. That one goes back, unless a third
  // has come.
  const auto taken = read_name(folder->get(), beside);
  const bool is_it = taken && *taken && **taken == content;
  if (!is_it) ::linkat(folder->get(), beside.c_str(), folder->get(), name_.c_str(), 0);
  ::unlinkat(folder->get(), beside.c_str(), 0);
  return is_it;
}

void InitFile::wait(Deadline until) {
  for (;;) {
    pollfd watched{watch_.get(), POLLIN, 0};  // poll(2) passes over -1, and waits
    const int ready = ::poll(&watched, 1, milliseconds_until(until));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0 || has_appeared()) return;
  }
}

bool InitFile::has_appeared() {
  alignas(inotify_event) std::array<char, 4096> bytes{};
  const auto got = ::read(watch_.get(), bytes.data(), bytes.size());
  bool appeared = false;
  for (std::size_t at = 0; got > 0 && at < static_cast<std::size_t>(got);) {
    inotify_event event{};
    std::memcpy(&event, bytes.data() + at, sizeof event);
    const char* const name = bytes.data() + at + sizeof event;
    appeared = appeared || (event.len != 0 && name_ == name) || (event.mask & IN_Q_OVERFLOW) != 0;
    // The folder is gone, or its file system: nothing is announced any more.
    if ((event.mask & IN_IGNORED) != 0) {
      watch_.close();
      return true;
    }
    at += sizeof event + event.len;
  }
  return appeared;
}

}  // namespace ddprun::worker
