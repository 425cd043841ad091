#include "worker/collective/shm_segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

namespace ddprun::worker {
namespace {

constexpr int kOwnerOnly = 0600;
constexpr std::size_t kMiB = std::size_t{1} << 20;

std::string reason(int error) { return std::generic_category().message(error); }

Error failed(std::string_view doing, const std::string& name, int error) {
  return {ErrorCode::kSystem, fmt::format("{} shared memory {}: {}", doing, name, reason(error))};
}

// The name starts with the job's cookie. By it the agent finds what a killed rank has left behind
// (agent/processes/containment.h).
std::string fresh_name(std::string_view cookie) {
  std::uint64_t number = 0;
  // The number need not be secret, only new. Should it repeat, O_EXCL in create() fails.
  if (::getrandom(&number, sizeof number, 0) != sizeof number) {
    number = static_cast<std::uint64_t>(::getpid());
  }
  return fmt::format("/ddprun-{}-{}-{:016x}", cookie, ::getpid(), number);
}

// The usual cause is a container: Docker gives /dev/shm 64 MiB. So the error says what to do.
Error too_small(std::size_t bytes, std::string_view purpose) {
  struct statvfs tmpfs {};
  std::size_t free_bytes = 0;
  if (::statvfs("/dev/shm", &tmpfs) == 0) free_bytes = tmpfs.f_bavail * tmpfs.f_frsize;
  return {ErrorCode::kLimit,
          fmt::format("{} MiB of shared memory needed for {}, /dev/shm has {} MiB free: enlarge it "
                      "(docker: --shm-size, else: mount -o remount,size=… /dev/shm)",
                      (bytes + kMiB - 1) / kMiB, purpose, free_bytes / kMiB)};
}

// Closes the descriptor at the end of the scope. A mapping lives on without it (mmap(2)).
struct Descriptor {
  explicit Descriptor(int opened) : fd(opened) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  Descriptor(Descriptor&&) = delete;
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  int fd;
};

// 0 or an errno. ftruncate alone would make a sparse file: each page is taken at its first use, and
// if there is none left then, the process gets SIGBUS. posix_fallocate takes all pages now. It
// returns its error and does not set errno.
int reserve(int fd, std::size_t bytes) {
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return errno;
  int error = EINTR;
  while (error == EINTR) error = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  return error;
}

std::byte* map(int fd, std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return nullptr;
  // A wish: most hosts have "never" in /sys/kernel/mm/transparent_hugepage/shmem_enabled.
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(memory);
}

}  // namespace

Result<ShmSegment> ShmSegment::create(std::size_t bytes, std::string_view purpose,
                                      std::string_view cookie) {
  const std::string name = fresh_name(cookie);
  const Descriptor file(
      ::shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, kOwnerOnly));
  if (file.fd < 0) return failed("create", name, errno);
  const int error = reserve(file.fd, bytes);
  std::byte* memory = error == 0 ? map(file.fd, bytes) : nullptr;
  if (memory != nullptr) return ShmSegment(memory, bytes, name, true);
  // Either reserve() told us its error, or mmap left it in errno.
  const int why = error == 0 ? errno : error;
  ::shm_unlink(name.c_str());
  if (why == ENOSPC || why == ENOMEM || why == EFBIG) return too_small(bytes, purpose);
  return failed("reserve", name, why);
}

Result<ShmSegment> ShmSegment::open(const std::string& name, std::size_t bytes) {
  const Descriptor file(::shm_open(name.c_str(), O_RDWR | O_CLOEXEC, kOwnerOnly));
  if (file.fd < 0) return failed("open", name, errno);
  struct stat status {};
  if (::fstat(file.fd, &status) != 0) return failed("look at", name, errno);
  // A mapping that is longer than its file ends in SIGBUS.
  if (static_cast<std::size_t>(status.st_size) != bytes) {
    return Error(ErrorCode::kProtocol, fmt::format("shared memory {} has {} bytes, expected {}",
                                                   name, status.st_size, bytes));
  }
  std::byte* memory = map(file.fd, bytes);
  if (memory == nullptr) return failed("map", name, errno);
  return ShmSegment(memory, bytes, name, false);
}

ShmSegment::ShmSegment(ShmSegment&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      name_(std::move(other.name_)),
      linked_(std::exchange(other.linked_, false)) {}

ShmSegment& ShmSegment::operator=(ShmSegment&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(name_, other.name_);
  std::swap(linked_, other.linked_);
  return *this;
}

ShmSegment::~ShmSegment() {
  unlink();
  if (data_ != nullptr) ::munmap(data_, size_bytes_);
}

void ShmSegment::unlink() {
  if (!std::exchange(linked_, false)) return;
  ::shm_unlink(name_.c_str());
  name_.clear();
}

}  // namespace ddprun::worker
