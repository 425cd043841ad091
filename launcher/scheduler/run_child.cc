#include "launcher/scheduler/run_child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <string_view>

#include "base/process_end.h"

namespace ddprun::launcher {
namespace {

using Clock = std::chrono::steady_clock;

// For a child that has answered, or was killed, to be gone.
constexpr std::chrono::milliseconds kExitLimit{100};

// False if `fd` had nothing to read by `end`.
bool has_input(int fd, Clock::time_point end) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
    const int polled = ::poll(&ready, 1, static_cast<int>(std::max<std::int64_t>(0, left.count())));
    if (polled >= 0 || errno != EINTR) return polled > 0;
  }
}

[[noreturn]] void answer(const std::function<std::string()>& question, int out, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  const std::string text = question();
  for (std::string_view rest = text; !rest.empty();) {
    const auto written = ::write(out, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) ::_exit(1);
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  // The end of a process waits for its threads, and one may hang: so the answer ends here.
  ::close(out);
  ::_exit(0);
}

std::optional<std::string> read_answer(int in, Clock::time_point end) {
  std::string text;
  std::array<char, 4096> piece{};
  while (has_input(in, end)) {
    const auto got = ::read(in, piece.data(), piece.size());
    if (got < 0) return std::nullopt;
    if (got == 0) return text.empty() ? std::nullopt : std::optional(text);
    text.append(piece.data(), static_cast<std::size_t>(got));
  }
  return std::nullopt;
}

// Waits for the child, but not for long: what hangs in the kernel may outlive SIGKILL.
void end_child(pid_t pid) {
  if (!ends_by(pid, Clock::now() + kExitLimit)) {
    ::kill(pid, SIGKILL);
    ends_by(pid, Clock::now() + kExitLimit);
  }
  ::waitpid(pid, nullptr, WNOHANG);
}

}  // namespace

std::optional<std::string> run_child(const std::function<std::string()>& question,
                                     Clock::time_point end) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return std::nullopt;
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) answer(question, ends[1], parent);
  ::close(ends[1]);
  auto text = pid < 0 ? std::nullopt : read_answer(ends[0], end);
  ::close(ends[0]);
  if (pid < 0) return std::nullopt;
  // It has a limit of its own to end by itself, unless its time is over.
  if (!text) ::kill(pid, SIGKILL);
  end_child(pid);
  return text;
}

}  // namespace ddprun::launcher
