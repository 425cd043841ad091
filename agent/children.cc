#include "agent/children.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace ddprun::agent {
namespace {

// Everything the child needs, made before the fork: between fork and exec only async-signal-safe
// calls are allowed, since gRPC's threads may hold any lock at that moment.
struct ChildPlan {
  const char* file = nullptr;
  std::vector<char*> argv;
  std::vector<char*> envp;
  int stdout_fd = -1;
  int stderr_fd = -1;
  int exec_pipe = -1;
  pid_t agent = 0;
  const std::vector<int>* keep_ignored = nullptr;
};

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  out.reserve(strings.size() + 1);
  // execve's prototype lacks the const that it honours (execve(2), POSIX rationale).
  for (const std::string& text : strings) out.push_back(const_cast<char*>(text.c_str()));
  out.push_back(nullptr);
  return out;
}

void reset_signals(const std::vector<int>& keep_ignored) {
  struct sigaction plain {};
  plain.sa_handler = SIG_DFL;
  for (int signo = 1; signo < NSIG; ++signo) ::sigaction(signo, &plain, nullptr);
  plain.sa_handler = SIG_IGN;
  for (const int signo : keep_ignored) ::sigaction(signo, &plain, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Runs in the child. Returns never.
[[noreturn]] void become_worker(const ChildPlan& plan) {
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != plan.agent) ::_exit(127);  // the agent died before the line above took effect
  reset_signals(*plan.keep_ignored);
  if (plan.stdout_fd >= 0) ::dup2(plan.stdout_fd, STDOUT_FILENO);
  if (plan.stderr_fd >= 0) ::dup2(plan.stderr_fd, STDERR_FILENO);
  ::close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
  ::execve(plan.file, plan.argv.data(), plan.envp.data());
  const int why = errno;
  // Nothing to do if this fails: the exit code alone then says that the exec failed.
  [[maybe_unused]] const auto written = ::write(plan.exec_pipe, &why, sizeof(why));
  ::_exit(127);
}

int read_exec_errno(int fd) {
  int why = 0;
  return ::read(fd, &why, sizeof(why)) == static_cast<ssize_t>(sizeof(why)) ? why : 0;
}

// Minus the signal for a killed process, else its exit status.
int exit_code_of(int status) {
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

std::vector<int> ignored_signals() {
  std::vector<int> ignored;
  for (int signo = 1; signo < NSIG; ++signo) {
    struct sigaction current {};
    if (::sigaction(signo, nullptr, &current) == 0 && current.sa_handler == SIG_IGN)
      ignored.push_back(signo);
  }
  return ignored;
}

Result<pid_t> Children::spawn(const SpawnSpec& spec) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
    return Error(ErrorCode::kSystem, fmt::format("make a pipe for local rank {}: {}",
                                                 spec.local_rank, ::strerrordesc_np(errno)));
  FileHandle exec_errno_reader(ends[0]);
  const FileHandle exec_errno_writer(ends[1]);
  const ChildPlan plan = {.file = spec.file.c_str(),
                          .argv = pointers(spec.argv),
                          .envp = pointers(spec.env),
                          .stdout_fd = spec.out.get(),
                          .stderr_fd = spec.err.get(),
                          .exec_pipe = exec_errno_writer.get(),
                          .agent = ::getpid(),
                          .keep_ignored = &keep_ignored_};
  // No signal may reach the child while it still has our handlers: they would write into the pipe
  // that it shares with us, and we would take its SIGTERM for ours. What comes meanwhile stays
  // pending until reset_signals().
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = ::fork();
  if (pid == 0) become_worker(plan);
  const int fork_errno = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0)
    return Error(ErrorCode::kSystem, fmt::format("make a process for local rank {}: {}",
                                                 spec.local_rank, ::strerrordesc_np(fork_errno)));
  workers_[pid] = {spec.local_rank, std::move(exec_errno_reader)};
  return pid;
}

void Children::signal_groups(int signo) {
  for (const auto& [pid, worker] : workers_) {
    // A worker that has not reached setsid() yet has no group of its own: signal it alone.
    if (::killpg(pid, signo) != 0) ::kill(pid, signo);
    ::killpg(pid, SIGCONT);
  }
}

void Children::signal_leaders(int signo) {
  for (const auto& [pid, worker] : workers_) ::kill(pid, signo);
}

// Peek, kill its group, then reap: until the reap the zombie holds the number, so that no stranger
// can be hit; after it the pid is forgotten.
std::vector<WorkerExit> Children::reap() {
  std::vector<WorkerExit> exits;
  siginfo_t dead{};
  while (::waitid(P_ALL, 0, &dead, WEXITED | WNOHANG | WNOWAIT) == 0 && dead.si_pid != 0) {
    const auto known = workers_.extract(dead.si_pid);
    if (known) ::killpg(dead.si_pid, SIGKILL);  // data loaders and the like must not keep the GPU
    int status = 0;
    ::waitpid(dead.si_pid, &status, 0);
    if (known) {
      const Worker& worker = known.mapped();
      exits.push_back({worker.local_rank, dead.si_pid, exit_code_of(status),
                       read_exec_errno(worker.exec_pipe.get())});
    }
    dead = {};
  }
  return exits;
}

}  // namespace ddprun::agent
