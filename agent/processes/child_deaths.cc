#include "agent/processes/child_deaths.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>

#include "base/file_handle.h"

namespace ddprun::agent {
namespace {

using Clock = std::chrono::steady_clock;

// More deaths than that before a look are not written down. The first ones matter.
constexpr std::size_t kMostTold = 1024;

// Any thread may run the handler.
struct Record {
  std::array<std::atomic<pid_t>, kMostTold> pids{};
  std::atomic<std::size_t> count{0};
  std::atomic<int> wake{-1};  // an eventfd; readable: a child has died since the last wait
  std::atomic<pid_t> process{0};
  struct sigaction before {};
};

Record& record() {
  static Record one;
  return one;
}

bool is_end(int code) { return code == CLD_EXITED || code == CLD_KILLED || code == CLD_DUMPED; }

void write_down(Record& deaths, pid_t pid) {
  if (const std::size_t place = deaths.count++; place < kMostTold) deaths.pids[place] = pid;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(deaths.wake, &one, sizeof(one));
}

void on_child_signal(int signo, siginfo_t* info, void* context) {
  const int before_errno = errno;
  Record& deaths = record();
  if (info->si_signo == SIGCHLD && is_end(info->si_code)) write_down(deaths, info->si_pid);
  errno = before_errno;
  if ((deaths.before.sa_flags & SA_SIGINFO) != 0)
    deaths.before.sa_sigaction(signo, info, context);
  else if (deaths.before.sa_handler != SIG_DFL && deaths.before.sa_handler != SIG_IGN)
    deaths.before.sa_handler(signo);
}

// A fork has the parent's eventfd, which must not be shared.
void begin_in_this_process(Record& deaths) {
  if (deaths.process == ::getpid()) return;
  FileHandle own(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  FileHandle parents(deaths.wake.exchange(own.release()));
  deaths.count = 0;
  deaths.process = ::getpid();
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_child_signal;
}

}  // namespace

void record_child_deaths() {
  Record& deaths = record();
  begin_in_this_process(deaths);
  struct sigaction now {};
  if (::sigaction(SIGCHLD, nullptr, &now) != 0 || is_ours(now)) return;
  deaths.before = now;
  struct sigaction recording {};
  recording.sa_sigaction = on_child_signal;
  recording.sa_mask = now.sa_mask;  // as the other handler, which runs within ours, wants it
  // A child that stops sends none: it would keep back the signal of a death.
  recording.sa_flags = SA_SIGINFO | SA_RESTART | SA_NOCLDSTOP;
  ::sigaction(SIGCHLD, &recording, nullptr);
}

// The handler would write at a place that is just being read.
std::vector<pid_t> take_child_deaths() {
  Record& deaths = record();
  std::vector<pid_t> told;
  sigset_t child;
  sigset_t before;
  ::sigemptyset(&child);
  ::sigaddset(&child, SIGCHLD);
  ::pthread_sigmask(SIG_BLOCK, &child, &before);
  const std::size_t count = std::min(deaths.count.exchange(0), kMostTold);
  for (std::size_t i = 0; i < count; ++i) {
    if (const pid_t pid = deaths.pids[i].exchange(0); pid != 0) told.push_back(pid);
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return told;
}

void wait_for_child_death(Clock::time_point until) {
  record_child_deaths();
  sigset_t child;
  sigset_t before;
  ::sigemptyset(&child);
  ::sigaddset(&child, SIGCHLD);
  ::pthread_sigmask(SIG_UNBLOCK, &child, &before);
  pollfd died{.fd = record().wake, .events = POLLIN, .revents = 0};
  int polled = -1;
  do {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    polled = ::poll(&died, 1, static_cast<int>(std::max<std::int64_t>(left, 0)));
  } while (polled < 0 && errno == EINTR);
  std::uint64_t count = 0;
  if (polled > 0) [[maybe_unused]]
    const auto got = ::read(died.fd, &count, sizeof(count));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void sort_by_deaths(std::vector<pid_t>& dead, const std::vector<pid_t>& told) {
  auto next = dead.begin();
  for (const pid_t child : told) {
    auto found = std::find(next, dead.end(), child);
    if (found == dead.end()) found = std::find(next, dead.end(), ::getsid(child));
    if (found != dead.end()) std::rotate(next++, found, found + 1);
  }
}

}  // namespace ddprun::agent
