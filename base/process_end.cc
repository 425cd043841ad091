#include "base/process_end.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <string_view>
#include <thread>

namespace ddprun {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Between two looks at a process that has no descriptor. The first ones are close: most waits are
// for a process that was killed.
constexpr milliseconds kFirstPause{1};
constexpr milliseconds kLongestPause{20};

// The letter of proc_pid_stat(5); 0: it cannot be read. The name before it may hold a ')', too.
char state_of(pid_t pid) {
  const FileHandle file(::open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 256> text{};
  const ssize_t got = ::read(file.get(), text.data(), text.size());
  if (got <= 0) return 0;
  const std::string_view stat(text.data(), static_cast<std::size_t>(got));
  const auto name_end = stat.rfind(") ");
  return name_end == std::string_view::npos || name_end + 2 >= stat.size() ? '\0'
                                                                           : stat[name_end + 2];
}

int milliseconds_left(Clock::time_point until) {
  const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000'000));
}

bool is_readable_by(int fd, Clock::time_point until) {
  pollfd ended{.fd = fd, .events = POLLIN, .revents = 0};
  int polled = -1;
  do polled = ::poll(&ended, 1, milliseconds_left(until));
  while (polled < 0 && errno == EINTR);
  return polled > 0;
}

}  // namespace

FileHandle open_pidfd(pid_t pid) {
  // It uses syscall(): glibc has pidfd_open() only since 2.36. Its long fits in an int.
  return FileHandle(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

bool has_ended(pid_t pid) {
  siginfo_t end{};
  if (::waitid(P_PID, static_cast<id_t>(pid), &end, WEXITED | WNOHANG | WNOWAIT) == 0)
    return end.si_pid != 0;
  const char state = state_of(pid);
  if (state != 0) return state == 'Z' || state == 'X';
  // A /proc that hides others' processes shows none of a living one.
  return ::kill(pid, 0) != 0 && errno == ESRCH;
}

bool ends_by(pid_t pid, Clock::time_point until) {
  const FileHandle process = open_pidfd(pid);
  if (process.get() >= 0) return is_readable_by(process.get(), until);
  for (milliseconds pause = kFirstPause; !has_ended(pid);
       pause = std::min(2 * pause, kLongestPause)) {
    const milliseconds left(milliseconds_left(until));
    if (left <= milliseconds::zero()) return false;
    std::this_thread::sleep_for(std::min(pause, left));
  }
  return true;
}

}  // namespace ddprun
