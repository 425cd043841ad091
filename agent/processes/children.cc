#include "agent/processes/children.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include "agent/processes/descendants.h"
#include "agent/processes/process.h"

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
  const rlimit* descriptors = nullptr;  // none: as ours
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
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
}

// Runs in the child. Returns never.
[[noreturn]] void become_worker(const ChildPlan& plan) {
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != plan.agent) ::_exit(127);  // the agent died before the line above took effect
  reset_signals(*plan.keep_ignored);
  if (plan.stdout_fd >= 0) ::dup2(plan.stdout_fd, STDOUT_FILENO);
  if (plan.stderr_fd >= 0) ::dup2(plan.stderr_fd, STDERR_FILENO);
  if (plan.descriptors != nullptr) ::setrlimit(RLIMIT_NOFILE, plan.descriptors);
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

// Whether the process has a handler for `signo` (proc_pid_status(5), SigCgt: a mask in hex).
bool handles(pid_t pid, int signo) {
  constexpr std::string_view kCaught = "\nSigCgt:";
  const std::string status = read_proc_file(pid, "status");
  const auto line = status.find(kCaught);
  if (line == std::string::npos) return false;
  const auto mask = std::strtoull(status.c_str() + line + kCaught.size(), nullptr, 16);
  return (mask >> static_cast<unsigned>(signo - 1) & 1U) != 0;
}

bool is_shell(pid_t pid) {
  constexpr std::array kShells = {"sh",  "bash", "dash", "zsh",  "ksh",    "mksh",
                                  "ash", "csh",  "tcsh", "fish", "busybox"};
  std::error_code gone;
  const auto program =
      std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/exe", gone).filename();
  return std::find(kShells.begin(), kShells.end(), program.string()) != kShells.end();
}

// Whether anybody lives in the group whose leader is dead and not yet reaped. Whoever leaves it by
// dying is an orphan of ours, and its death wakes us.
bool group_lives(pid_t leader) {
  const std::vector<pid_t> below = descendants(::getpid());
  return std::any_of(below.begin(), below.end(), [leader](pid_t pid) {
    if (pid == leader || ::getpgid(pid) != leader) return false;
    const auto stat = read_process_stat(pid);
    return stat && !stat->is_dead();
  });
}

void signal_group(pid_t pid, int signo) {
  // A worker that has not reached setsid() yet has no group of its own: signal it alone.
  if (::killpg(pid, signo) != 0) ::kill(pid, signo);
  ::killpg(pid, SIGCONT);
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

Children::Children(std::vector<int> keep_ignored)
    : keep_ignored_(std::move(keep_ignored)), deaths_(::epoll_create1(EPOLL_CLOEXEC)) {}

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
                          .keep_ignored = &keep_ignored_,
                          .descriptors = worker_descriptors_ ? &*worker_descriptors_ : nullptr};
  // No signal may reach the child while it still has our handlers: they would write into the pipe
  // that it shares with us, and we would take its SIGTERM for ours. What comes meanwhile stays
  // pending until reset_signals().
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = fork_worker();
  if (pid == 0) become_worker(plan);
  const int fork_errno = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0)
    return Error(ErrorCode::kSystem, fmt::format("make a process for local rank {}: {}",
                                                 spec.local_rank, ::strerrordesc_np(fork_errno)));
  Worker& worker = workers_[pid];
  worker.local_rank = spec.local_rank;
  worker.exec_pipe = std::move(exec_errno_reader);
  watch(pid, worker);
  return pid;
}

// Into the job's cgroup where there is one: at birth, since moving a live process waits for an RCU
// grace period, some 20 ms (cgroups(7), clone3(2) CLONE_INTO_CGROUP, Linux 5.7).
pid_t Children::fork_worker() const {
  if (cgroup_fd_ >= 0) {
    clone_args args{};
    args.flags = CLONE_INTO_CGROUP;
    args.exit_signal = SIGCHLD;
    args.cgroup = static_cast<decltype(args.cgroup)>(cgroup_fd_);
    const long pid = ::syscall(SYS_clone3, &args, sizeof(args));
    if (pid >= 0) return static_cast<pid_t>(pid);
    // The cgroup is full, gone, or a seccomp filter knows no clone3: the other layers must do.
  }
  return ::fork();
}

// Where this fails, reap() still finds the worker, only its turn among simultaneous deaths is lost.
void Children::watch(pid_t pid, Worker& worker) const {
  worker.pidfd = open_pidfd(pid);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = pid;
  ::epoll_ctl(deaths_.get(), EPOLL_CTL_ADD, worker.pidfd.get(), &event);
}

std::vector<pid_t> Children::pids() const {
  std::vector<pid_t> found;
  for (const auto& [pid, worker] : workers_) found.push_back(pid);
  return found;
}

void Children::signal_groups(int signo) {
  for (auto& [pid, worker] : workers_) {
    if (signo == SIGKILL) worker.wraps = false;  // no more patience
    signal_group(pid, signo);
  }
}

void Children::ask_to_end(int signo) {
  for (auto& [pid, worker] : workers_) {
    if (handles(pid, signo)) {
      ::kill(pid, signo);
      ::killpg(pid, SIGCONT);
    } else {
      worker.wraps = is_shell(pid);
      signal_group(pid, signo);
    }
  }
}

void Children::ask_shells_again(int signo) {
  for (const auto& [pid, worker] : workers_) {
    if (is_shell(pid)) signal_group(pid, signo);
  }
}

void Children::signal_leaders(int signo) {
  for (const auto& [pid, worker] : workers_) ::kill(pid, signo);
}

std::vector<WorkerExit> Children::reap() {
  std::vector<WorkerExit> exits;
  bool all = true;
  for (const pid_t pid : dead_workers()) {
    if (is_still_needed(pid)) {
      all = false;
    } else {
      collect(pid, exits);
    }
  }
  if (!all) {
    // waitid() would find the shell that is still needed again and again.
    reap_orphans();
    return exits;
  }
  siginfo_t dead{};
  while (::waitid(P_ALL, 0, &dead, WEXITED | WNOHANG | WNOWAIT) == 0 && dead.si_pid != 0) {
    collect(dead.si_pid, exits);
    dead = {};
  }
  return exits;
}

// Children that are no workers were handed to us as subreaper; nobody asks for their status.
void Children::reap_orphans() const {
  for (const pid_t child : own_children()) {
    if (!workers_.contains(child)) ::waitpid(child, nullptr, WNOHANG);
  }
}

// First come, first named: the report's root cause is the worker that died first, also where two
// died before we looked.
std::vector<pid_t> Children::dead_workers() const {
  std::vector<pid_t> dead;
  std::vector<epoll_event> events(workers_.size());
  if (events.empty()) return dead;
  const int count = ::epoll_wait(deaths_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    const pid_t pid = events[static_cast<std::size_t>(i)].data.fd;
    // A sibling between fork and exec may still hold the pidfd of one that we have forgotten.
    if (workers_.contains(pid)) dead.push_back(pid);
  }
  return dead;
}

// The program under a shell that the request to end has killed has the grace that it would have
// alone.
bool Children::is_still_needed(pid_t dead) const {
  const auto worker = workers_.find(dead);
  return worker != workers_.end() && worker->second.wraps && group_lives(dead);
}

// Peek, kill its group, then reap: until the reap the zombie holds the number, so that no stranger
// can be hit; after it the pid is forgotten.
void Children::collect(pid_t pid, std::vector<WorkerExit>& exits) {
  const auto known = workers_.extract(pid);
  if (known) ::killpg(pid, SIGKILL);  // data loaders and the like must not keep the GPU
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (!known) return;
  const Worker& worker = known.mapped();
  exits.push_back(
      {worker.local_rank, pid, exit_code_of(status), read_exec_errno(worker.exec_pipe.get())});
}

}  // namespace ddprun::agent
