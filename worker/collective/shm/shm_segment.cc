#include "worker/collective/shm/shm_segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <system_error>
#include <utility>

#include "base/memory_cgroup.h"
#include "worker/collective/shm/shm_layout.h"

namespace ddprun::worker {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
// Linux 6.1 (madvise(2)); the C library's header is older.
constexpr int kMadvCollapse = 25;
// Nobody may make the file shorter than what is mapped: that would end in SIGBUS.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

std::string reason(int error) { return std::generic_category().message(error); }

// The caller says what it is for, or which file.
Error failed(std::string_view doing, std::string_view what, int error) {
  return {ErrorCode::kSystem, fmt::format("{} shared memory {}: {}", doing, what, reason(error))};
}

// Opening a file of another process takes the right to look into that process (proc_pid_fd(5)).
Error not_opened(const std::string& name, int error) {
  return {
      ErrorCode::kSystem,
      fmt::format("open shared memory {}: {}: the ranks of a host must see each other's processes "
                  "(one pid namespace with its /proc, one user namespace)",
                  name, reason(error))};
}

std::string needed(std::size_t bytes, std::string_view purpose) {
  return fmt::format("{} MiB of shared memory needed for {}", (bytes + kMiB - 1) / kMiB, purpose);
}

Error too_little(std::size_t bytes, std::string_view purpose, std::uint64_t left) {
  return {ErrorCode::kLimit,
          fmt::format("{}, {} MiB of memory are left: free some, or allow the job more (docker: "
                      "--memory, Slurm: --mem)",
                      needed(bytes, purpose), left / kMiB)};
}

// The kernel refuses though memory is left: vm.overcommit_memory is 2, or a limit of this process.
Error refused(std::size_t bytes, std::string_view purpose, int error) {
  return {ErrorCode::kLimit, fmt::format("{}: {}", needed(bytes, purpose), reason(error))};
}

std::string what_for(std::string_view purpose) { return "for " + std::string(purpose); }

// Says that the file is not executable, since a host may refuse others (vm.memfd_noexec, Linux
// 6.3). Older kernels do not know the flag.
FileHandle make_file() {
  constexpr unsigned kNoExecSeal = 8;
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  FileHandle file(::memfd_create("ddprun", kFlags | kNoExecSeal));
  return file.get() < 0 && errno == EINVAL ? FileHandle(::memfd_create("ddprun", kFlags))
                                           : std::move(file);
}

bool is_limit(int error) { return error == ENOSPC || error == ENOMEM || error == EFBIG; }

// At a multiple of the huge page, where the piece has room for one. mmap alone does not see to
// that.
std::byte* map(int file, std::size_t bytes) {
  const std::size_t spare = bytes < kHugePageBytes ? 0 : kHugePageBytes;
  void* room =
      ::mmap(nullptr, bytes + spare, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(room);
  std::byte* const at = spare == 0
                            ? begin
                            : begin + (round_up(reinterpret_cast<std::uintptr_t>(begin), spare) -
                                       reinterpret_cast<std::uintptr_t>(begin));
  void* memory = ::mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
  const int why = errno;
  const auto before = static_cast<std::size_t>(at - begin);
  const std::size_t used = memory == MAP_FAILED ? 0 : round_up(bytes, kPageBytes);
  if (before > 0) ::munmap(begin, before);
  if (before + used < bytes + spare) ::munmap(at + used, bytes + spare - before - used);
  errno = why;
  return memory == MAP_FAILED ? nullptr : at;
}

std::shared_ptr<std::byte> owned(std::byte* memory, std::size_t bytes) {
  return {memory, [bytes](std::byte* mapped) { ::munmap(mapped, bytes); }};
}

#if defined(__SANITIZE_THREAD__)
// ThreadSanitizer knows memory by its address. So ranks that are threads of one process have one
// mapping of their shared memory. Else rank_threads_test would see no race between them.
struct MappingTable {
  std::mutex mutex;
  std::map<std::pair<dev_t, ino_t>, std::weak_ptr<std::byte>> mappings;
};

MappingTable& all_mappings() {
  static MappingTable all;
  return all;
}

std::shared_ptr<std::byte> keep(std::byte* memory, std::size_t bytes, int file) {
  struct stat status {};
  auto mapping = owned(memory, bytes);
  const std::lock_guard lock(all_mappings().mutex);
  if (::fstat(file, &status) == 0)
    all_mappings().mappings[{status.st_dev, status.st_ino}] = mapping;
  return mapping;
}

std::shared_ptr<std::byte> kept(const struct stat& status) {
  const std::lock_guard lock(all_mappings().mutex);
  const auto found = all_mappings().mappings.find({status.st_dev, status.st_ino});
  return found == all_mappings().mappings.end() ? nullptr : found->second.lock();
}
#else
std::shared_ptr<std::byte> keep(std::byte* memory, std::size_t bytes, int /*file*/) {
  return owned(memory, bytes);
}

std::shared_ptr<std::byte> kept(const struct stat& /*status*/) { return nullptr; }
#endif

}  // namespace

Result<ShmSegment> ShmSegment::create(std::size_t bytes, std::string_view purpose) {
  // The kernel would end a process of the job, not refuse, where a cgroup's limit is met.
  if (const auto left = memory_left(); left && *left < bytes)
    return too_little(bytes, purpose, *left);
  FileHandle file = make_file();
  if (file.get() < 0) return failed("make", what_for(purpose), errno);
  std::byte* memory = nullptr;
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) == 0 &&
      ::fcntl(file.get(), F_ADD_SEALS, kSeals) == 0)
    memory = map(file.get(), bytes);
  const int why = errno;
  if (memory != nullptr) {
    auto mapping = keep(memory, bytes, file.get());
    return ShmSegment(std::move(mapping), bytes, std::move(file));
  }
  return is_limit(why) ? refused(bytes, purpose, why) : failed("make", what_for(purpose), why);
}

Result<ShmSegment> ShmSegment::open(const std::string& name, std::size_t bytes) {
  FileHandle file(::open(name.c_str(), O_RDWR | O_CLOEXEC));
  if (file.get() < 0) return not_opened(name, errno);
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals)
    return Error(ErrorCode::kProtocol, name + " is no shared memory that a rank has made");
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return failed("look at", name, errno);
  // A mapping that is longer than its file ends in SIGBUS.
  if (static_cast<std::size_t>(status.st_size) != bytes) {
    return Error(ErrorCode::kProtocol, fmt::format("shared memory {} has {} bytes, expected {}",
                                                   name, status.st_size, bytes));
  }
  if (auto ours = kept(status)) return ShmSegment(std::move(ours), bytes, std::move(file));
  std::byte* memory = map(file.get(), bytes);
  if (memory == nullptr) return failed("map", name, errno);
  return ShmSegment(owned(memory, bytes), bytes, std::move(file));
}

ShmSegment::ShmSegment(ShmSegment&& other) noexcept
    : data_(std::move(other.data_)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      file_(std::move(other.file_)) {}

ShmSegment& ShmSegment::operator=(ShmSegment&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(file_, other.file_);
  return *this;
}

Result<void> ShmSegment::reserve(std::size_t offset, std::size_t bytes, bool huge,
                                 std::string_view purpose) {
  // posix_fallocate returns its error and does not set errno.
  int error = EINTR;
  while (error == EINTR)
    error = ::posix_fallocate(file_.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes));
  if (error != 0) {
    return is_limit(error) ? refused(bytes, purpose, error)
                           : failed("reserve", what_for(purpose), error);
  }
  if (huge) ::madvise(data_.get() + offset, bytes, kMadvCollapse);
  return {};
}

void ShmSegment::enter_pages() { ::madvise(data_.get(), size_bytes_, MADV_POPULATE_WRITE); }

// /proc may be that of another pid namespace: it knows our number there.
std::string ShmSegment::name() const {
  std::error_code failed;
  const std::string self = std::filesystem::read_symlink("/proc/self", failed).string();
  return fmt::format("/proc/{}/fd/{}", failed ? std::to_string(::getpid()) : self, file_.get());
}

}  // namespace ddprun::worker
