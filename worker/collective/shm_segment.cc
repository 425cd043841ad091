#include "worker/collective/shm_segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

#include "proto/memory_cgroup.h"
#include "worker/collective/shm_layout.h"

namespace ddprun::worker {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
// Sums of parts below this size got slower with huge pages, those above faster.
constexpr std::size_t kCollapseBytes = 4 * kMiB;
// Linux 6.1 (madvise(2)); the C library's header is older.
constexpr int kMadvCollapse = 25;
// Nobody may make the file shorter than what is mapped: that would end in SIGBUS.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

std::string reason(int error) { return std::generic_category().message(error); }

Error failed(std::string_view doing, std::string_view what, int error) {
  return {ErrorCode::kSystem, fmt::format("{} shared memory {}: {}", doing, what, reason(error))};
}

Error too_little(std::size_t bytes, std::string_view purpose) {
  return {
      ErrorCode::kLimit,
      fmt::format("{} MiB of shared memory needed for {}, {} MiB of memory are left: free some, or "
                  "allow the job more (docker: --memory, Slurm: --mem)",
                  (bytes + kMiB - 1) / kMiB, purpose, memory_left().value_or(0) / kMiB)};
}

bool is_limit(int error) { return error == ENOSPC || error == ENOMEM || error == EFBIG; }

// At a multiple of the huge page, where the piece has room for one. mmap alone does not see to that.
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

}  // namespace

Result<ShmSegment> ShmSegment::create(std::size_t bytes, std::string_view purpose) {
  // The kernel would end a process of the job, not refuse, where a cgroup's limit is met.
  if (const auto left = memory_left(); left && *left < bytes) return too_little(bytes, purpose);
  FileHandle file(::memfd_create("ddprun", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.get() < 0) return failed("make", purpose, errno);
  std::byte* memory = nullptr;
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) == 0 &&
      ::fcntl(file.get(), F_ADD_SEALS, kSeals) == 0)
    memory = map(file.get(), bytes);
  if (memory != nullptr) return ShmSegment(memory, bytes, std::move(file));
  const int why = errno;
  return is_limit(why) ? too_little(bytes, purpose) : failed("make", purpose, why);
}

Result<ShmSegment> ShmSegment::open(const std::string& name, std::size_t bytes) {
  FileHandle file(::open(name.c_str(), O_RDWR | O_CLOEXEC));
  if (file.get() < 0) return failed("open", name, errno);
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
  std::byte* memory = map(file.get(), bytes);
  if (memory == nullptr) return failed("map", name, errno);
  return ShmSegment(memory, bytes, std::move(file));
}

ShmSegment::ShmSegment(ShmSegment&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      file_(std::move(other.file_)) {}

ShmSegment& ShmSegment::operator=(ShmSegment&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(file_, other.file_);
  return *this;
}

ShmSegment::~ShmSegment() {
  if (data_ != nullptr) ::munmap(data_, size_bytes_);
}

Result<void> ShmSegment::reserve(std::size_t offset, std::size_t bytes, std::string_view purpose) {
  // posix_fallocate returns its error and does not set errno.
  int error = EINTR;
  while (error == EINTR)
    error = ::posix_fallocate(file_.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes));
  if (error != 0)
    return is_limit(error) ? too_little(bytes, purpose) : failed("reserve", purpose, error);
  if (bytes >= kCollapseBytes) ::madvise(data_ + offset, bytes, kMadvCollapse);
  return {};
}

void ShmSegment::enter_pages() { ::madvise(data_, size_bytes_, MADV_POPULATE_WRITE); }

std::string ShmSegment::name() const {
  return fmt::format("/proc/{}/fd/{}", ::getpid(), file_.get());
}

}  // namespace ddprun::worker
