#include "worker/startup/rank_processes.h"

#include <ddprun/collective.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/file_handle.h"
#include "base/new_calls.h"
#include "base/process_end.h"
#include "worker/startup/gpu_files.h"

namespace ddprun::worker {
namespace {

using Clock = std::chrono::steady_clock;

// A rank that fails because another one is gone may be seen first. We wait so long for the other.
constexpr std::chrono::milliseconds kCauseTime{100};
constexpr int kThrewExitCode = 1;

// The record that a rank that threw writes into its pipe. One write of less than PIPE_BUF is whole
// or absent.
struct RankError {
  Clock::time_point at;
  bool follows_another = false;   // a CollectiveError
  std::array<char, 3072> text{};  // ended by a zero
};

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

struct Rank {
  pid_t pid = 0;
  FileHandle process;  // a pidfd; -1: there are none here (base/new_calls.h)
  FileHandle thrown;   // the pipe's end that we read
  bool ended = false;
};

struct Failure {
  int rank = 0;
  siginfo_t end{};
  std::optional<RankError> thrown;

  // The cause is the smallest: what has no other cause, then the earliest. A rank that died without
  // a word has died before those that noticed it.
  auto order() const {
    return std::pair(thrown && thrown->follows_another, thrown ? thrown->at : Clock::time_point());
  }
};

sigset_t end_of_a_child() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGCHLD);
  return set;
}

// Keeps the ranks' ends: while SIGCHLD is ignored, the kernel reaps them, and nobody can learn how
// they ended (wait(2)). Without pidfds the signal is blocked, so that a wait can take it.
class EndsAreKept {
 public:
  EndsAreKept() {
    struct sigaction normal {};
    normal.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, nullptr, &before_);
    if (before_.sa_handler == SIG_IGN) ::sigaction(SIGCHLD, &normal, nullptr);
    const sigset_t child = end_of_a_child();
    if (takes_signals_) ::pthread_sigmask(SIG_BLOCK, &child, &mask_);
  }
  EndsAreKept(const EndsAreKept&) = delete;
  EndsAreKept& operator=(const EndsAreKept&) = delete;
  EndsAreKept(EndsAreKept&&) = delete;
  EndsAreKept& operator=(EndsAreKept&&) = delete;
  ~EndsAreKept() {
    if (before_.sa_handler == SIG_IGN) ::sigaction(SIGCHLD, &before_, nullptr);
    if (!takes_signals_) return;
    ::pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
    ::raise(SIGCHLD);  // some may have been another child's
  }

  // Gives a rank the program's own mask.
  void restore_in_rank() const {
    if (takes_signals_) ::pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  }

 private:
  const bool takes_signals_ = !has_call(NewCall::kPidfdOpen);
  sigset_t mask_{};
  struct sigaction before_ {};
};

int run_body(const std::function<void(int)>& body, int rank, int thrown_pipe) {
  RankError thrown;
  try {
    body(rank);
    return 0;
  } catch (const CollectiveError& error) {
    thrown.follows_another = true;
    std::string_view(error.what()).copy(thrown.text.data(), thrown.text.size() - 1);
  } catch (const std::exception& error) {
    std::string_view(error.what()).copy(thrown.text.data(), thrown.text.size() - 1);
  } catch (...) {  // whatever it is, the parent must hear of it
    std::string_view("threw what is no std::exception")
        .copy(thrown.text.data(), thrown.text.size());
  }
  thrown.at = Clock::now();
  const auto written = ::write(thrown_pipe, &thrown, sizeof thrown);
  return written == sizeof thrown ? kThrewExitCode : kThrewExitCode + 1;
}

[[noreturn]] void leave(int code) {
  std::fflush(nullptr);
  ::_exit(code);
}

Rank fork_rank(int rank, const std::function<void(int)>& body, const EndsAreKept& kept) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail("make a pipe");
  FileHandle read_end(ends[0]), write_end(ends[1]);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) fail("fork a rank");
  if (pid == 0) {
    ::setpgid(0, 0);
    kept.restore_in_rank();
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(kThrewExitCode);  // it died before we asked to die with it
    // A group in the background that reads the terminal is stopped, and would never end.
    const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ::dup2(nothing, STDIN_FILENO);
    // exit() in the body ends here too: destructors of static objects are the parent's (on_exit(3),
    // glibc).
    ::on_exit([](int code, void*) { leave(code); }, nullptr);
    leave(run_body(body, rank, write_end.get()));
  }
  ::setpgid(pid, pid);  // here too: it must be so before we may kill the group
  FileHandle process = open_pidfd(pid);
  if (process.get() < 0 && has_call(NewCall::kPidfdOpen)) {
    const int why = errno;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    errno = why;
    fail("watch a rank");
  }
  return {pid, std::move(process), std::move(read_end), false};
}

// Waits for the end of a child. It has ended since the last wait, or ends now. False: the time is
// over; -1: it never is. Needs EndsAreKept.
bool child_ends(int milliseconds) {
  const sigset_t child = end_of_a_child();
  const timespec limit{.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1'000'000L};
  for (;;) {
    const int signo =
        milliseconds < 0 ? ::sigwaitinfo(&child, nullptr) : ::sigtimedwait(&child, nullptr, &limit);
    if (signo > 0) return true;
    if (errno == EAGAIN) return false;
    if (errno != EINTR) fail("wait for ranks");
  }
}

class Ranks {
 public:
  Ranks() = default;
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  Ranks(Ranks&&) = delete;
  Ranks& operator=(Ranks&&) = delete;
  ~Ranks() {
    for (Rank& rank : ranks_) {
      if (!rank.ended) ::killpg(rank.pid, SIGKILL);
    }
    for (Rank& rank : ranks_) {
      if (!rank.ended) ::waitpid(rank.pid, nullptr, 0);
    }
  }

  void add(Rank rank) { ranks_.push_back(std::move(rank)); }

  // Waits for ends; returns those that were no good ends. Empty if all have ended well, or the time
  // is over.
  std::vector<Failure> wait(int milliseconds) {
    std::vector<Failure> failures;
    while (failures.empty() && poll_ends(milliseconds)) {
      for (std::size_t i = 0; i < ranks_.size(); ++i) {
        if (!ranks_[i].ended && has_ended(ranks_[i].pid)) reap(i, failures);
      }
    }
    return failures;
  }

 private:
  // Returns whether a rank has ended, or a child of the program, where pidfds are missing. False at
  // once if none is left.
  bool poll_ends(int milliseconds) {
    polled_.clear();
    bool left = false;
    bool all_are_watched = true;
    for (const Rank& rank : ranks_) {
      polled_.push_back({rank.ended ? -1 : rank.process.get(), POLLIN, 0});
      left = left || !rank.ended;
      all_are_watched = all_are_watched && (rank.ended || rank.process.get() >= 0);
    }
    if (!left) return false;
    if (!all_are_watched) return child_ends(milliseconds);
    for (;;) {
      const int ready = ::poll(polled_.data(), polled_.size(), milliseconds);
      if (ready >= 0) return ready > 0;
      if (errno != EINTR) fail("wait for ranks");
    }
  }

  void reap(std::size_t number, std::vector<Failure>& failures) {
    Rank& rank = ranks_[number];
    Failure end{.rank = static_cast<int>(number)};
    // Its own processes go first: until the rank is reaped, the group's number is not another
    // one's.
    if (::waitid(P_PID, static_cast<id_t>(rank.pid), &end.end, WEXITED | WNOWAIT) != 0)
      fail("learn how a rank ended");
    ::killpg(rank.pid, SIGKILL);
    ::waitpid(rank.pid, nullptr, 0);
    rank.ended = true;
    if (end.end.si_code == CLD_EXITED && end.end.si_status == 0) return;
    RankError thrown;
    ::fcntl(rank.thrown.get(), F_SETFL, O_NONBLOCK);  // what it forked may still hold the other end
    if (::read(rank.thrown.get(), &thrown, sizeof thrown) == sizeof thrown) end.thrown = thrown;
    failures.push_back(end);
  }

  std::vector<Rank> ranks_;
  std::vector<pollfd> polled_;
};

[[noreturn]] void throw_error(const Failure& failure) {
  const int status = failure.end.si_status;
  if (failure.end.si_code == CLD_EXITED) {
    const std::string reason = failure.thrown ? std::string(failure.thrown->text.data())
                                              : "exited with code " + std::to_string(status);
    throw SpawnError(failure.rank, reason, status, std::nullopt);
  }
  const char* const name = ::sigdescr_np(status);
  throw SpawnError(failure.rank,
                   "killed by signal " + std::to_string(status) + " (" +
                       (name != nullptr ? name : "a real-time signal") + ")",
                   std::nullopt, status);
}

// A forked process can use no GPU if CUDA began before.
void require_no_open_gpu() {
  const std::string path = open_gpu_file();
  if (path.empty()) return;
  throw std::logic_error("spawn: this process has opened " + path +
                         "; call it before anything asks CUDA (why_no_gpu() does)");
}

void require_one_thread() {
  const auto threads = std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                                     std::filesystem::directory_iterator());
  if (threads == 1) return;
  throw std::logic_error("spawn: this process has " + std::to_string(threads) +
                         " threads; call it before anything starts one (a large operation of "
                         "LibTorch does, and CUDA)");
}

}  // namespace

void run_rank_processes(int ranks, const std::function<void(int)>& body) {
  if (ranks < 1 || ranks > kMaxSpawnedRanks) {
    throw std::invalid_argument("spawn: " + std::to_string(ranks) + " ranks, expected 1 to " +
                                std::to_string(kMaxSpawnedRanks));
  }
  require_no_open_gpu();
  require_one_thread();
  std::fflush(nullptr);  // or the ranks print it again
  std::optional<Failure> cause;
  {
    const EndsAreKept kept;
    Ranks all;
    for (int rank = 0; rank < ranks; ++rank) all.add(fork_rank(rank, body, kept));
    auto failures = all.wait(-1);
    const auto more_to_come = [&failures] {
      return std::ranges::all_of(failures, [](const Failure& failure) {
        return failure.thrown && failure.thrown->follows_another;
      });
    };
    while (!failures.empty() && more_to_come()) {
      auto more = all.wait(static_cast<int>(kCauseTime.count()));
      if (more.empty()) break;
      std::ranges::move(more, std::back_inserter(failures));
    }
    if (!failures.empty()) cause = *std::ranges::min_element(failures, {}, &Failure::order);
  }
  if (cause) throw_error(*cause);
}

}  // namespace ddprun::worker
