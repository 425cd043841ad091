#include "base/close_at_exec.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>

#include "base/new_calls.h"

namespace ddprun {
namespace {

void mark(int fd) {
  if (const int flags = ::fcntl(fd, F_GETFD); flags >= 0) ::fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
}

// -1: it is none.
int number_of(const char* name) {
  int number = 0;
  for (; *name != '\0'; ++name) {
    if (*name < '0' || *name > '9') return -1;
    number = number * 10 + (*name - '0');
  }
  return number;
}

// Reads the list by the system call. opendir(3) takes memory, and another thread may have held the
// allocator's lock at the fork. False: there is no list.
bool mark_listed(int first) {
  const int list = ::open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (list < 0) return false;
  alignas(dirent64) char entries[4096];
  long got = 0;
  while ((got = ::syscall(SYS_getdents64, list, entries, sizeof(entries))) > 0) {
    for (long at = 0; at < got;) {
      const auto* const entry = reinterpret_cast<const dirent64*>(entries + at);
      const int fd = number_of(entry->d_name);
      if (fd >= first && fd != list) mark(fd);
      at += entry->d_reclen;
    }
  }
  ::close(list);
  return got == 0;
}

// Without /proc all numbers that may be open are tried.
void mark_all(int first) {
  constexpr rlim_t kMost = 1U << 20U;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const auto end = static_cast<int>(std::min(limit.rlim_max, kMost));
  for (int fd = first; fd < end; ++fd) mark(fd);
}

}  // namespace

void close_at_exec(int first) {
  if (has_call(NewCall::kCloseRange) &&
      ::syscall(SYS_close_range, first, ~0U, CLOSE_RANGE_CLOEXEC) == 0)
    return;
  if (!mark_listed(first)) mark_all(first);
}

}  // namespace ddprun
