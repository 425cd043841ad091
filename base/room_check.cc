#include "base/room_check.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>

#include <cerrno>
#include <vector>

#include "base/file_handle.h"
#include "base/limit_hint.h"

// glibc's; a program with another malloc has none. Weak: it must not bring glibc's malloc in.
extern "C" int mallopt(int parameter, int value) __attribute__((weak));

namespace ddprun {
namespace {

constexpr int kMostArenas = -8;  // M_ARENA_MAX of <malloc.h>

Error lacks(const std::string& what, int error) {
  return {ErrorCode::kLimit, what + ": " + describe_errno(error)};
}

Result<void> check_descriptors(int count) {
  std::vector<FileHandle> opened;
  for (int i = 0; i < count; ++i) {
    opened.emplace_back(::open("/", O_PATH | O_CLOEXEC));
    if (opened.back().get() < 0)
      return lacks(fmt::format("open {} descriptors for the rendezvous", count), errno);
  }
  return {};
}

void* pass_by(void* gate) {
  auto* const mutex = static_cast<pthread_mutex_t*>(gate);
  ::pthread_mutex_lock(mutex);
  ::pthread_mutex_unlock(mutex);
  return nullptr;
}

// All of them must live at one time.
Result<void> check_threads(int count) {
  pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
  ::pthread_mutex_lock(&gate);
  std::vector<pthread_t> threads;
  int error = 0;
  for (int i = 0; i < count && error == 0; ++i) {
    pthread_t thread{};
    error = ::pthread_create(&thread, nullptr, pass_by, &gate);
    if (error == 0) threads.push_back(thread);
  }
  ::pthread_mutex_unlock(&gate);
  for (const pthread_t thread : threads) ::pthread_join(thread, nullptr);
  if (error != 0) return lacks(fmt::format("make {} threads for the rendezvous", count), error);
  return {};
}

Result<void> check_memory(std::size_t bytes) {
  void* const memory =
      ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    return lacks(fmt::format("map {} MiB for the rendezvous", bytes >> 20U), errno);
  ::munmap(memory, bytes);
  return {};
}

}  // namespace

Result<void> check_room(const Room& needed) {
  const bool is_limited = has_memory_limit();
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread allocates yet
  if (is_limited && ::mallopt != nullptr) ::mallopt(kMostArenas, 1);
  if (auto checked = check_descriptors(needed.descriptors); !checked) return checked;
  if (auto checked = check_threads(needed.threads); !checked) return checked;
  return is_limited ? check_memory(needed.memory_bytes) : Result<void>();
}

}  // namespace ddprun
