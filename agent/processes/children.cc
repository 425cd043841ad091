#include "agent/processes/children.h"

#include <fcntl.h>
#include <fmt/format.h>
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

#include "agent/processes/child_deaths.h"
#include "agent/processes/descendants.h"
#include "agent/processes/process.h"
#include "base/close_at_exec.h"
#include "base/limit_hint.h"
#include "base/new_calls.h"
#include "base/process_end.h"

namespace ddprun::agent {
namespace {

// Everything the child needs, made before the fork. Between fork and exec the child may make only
// async-signal-safe calls (signal-safety(7)): gRPC's threads may hold any lock, malloc's too.
struct ChildPlan {
  const char* file = nullptr;
  std::vector<char*> argv;
  std::vector<char*> envp;
  int stdout_fd = -1;
  int stderr_fd = -1;
  int control_fd = -1;
  int exec_pipe = -1;
  pid_t agent = 0;
  const std::vector<int>* keep_ignored = nullptr;
  const rlimit* descriptors = nullptr;  // nullptr: as ours
};

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  out.reserve(strings.size() + 1);
  // execve() does not write to them; its prototype lacks the const (POSIX, exec, Rationale).
  for (const std::string& text : strings) out.push_back(const_cast<char*>(text.c_str()));
  out.push_back(nullptr);
  return out;
}

// An ignored signal and the mask survive the exec (execve(2)), and we ignore SIGPIPE. So the child
// sets all of them itself.
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

[[noreturn]] void become_worker(const ChildPlan& plan) {
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The agent may have died before prctl(): then the kernel never sends us the SIGKILL.
  if (::getppid() != plan.agent) ::_exit(127);
  reset_signals(*plan.keep_ignored);
  // dup2() clears close-on-exec on the new number (dup(2)), so these two survive the exec.
  if (plan.stdout_fd >= 0) ::dup2(plan.stdout_fd, STDOUT_FILENO);
  if (plan.stderr_fd >= 0) ::dup2(plan.stderr_fd, STDERR_FILENO);
  if (plan.descriptors != nullptr) ::setrlimit(RLIMIT_NOFILE, plan.descriptors);
  // Close-on-exec and not closed now: the pipe must stay open until execve() has succeeded.
  close_at_exec(STDERR_FILENO + 1);
  int exec_pipe = plan.exec_pipe;
  if (plan.control_fd >= 0) {
    if (exec_pipe == kControlFd) exec_pipe = ::fcntl(exec_pipe, F_DUPFD_CLOEXEC, kControlFd + 1);
    // dup2() of a descriptor to itself would leave it close-on-exec.
    if (plan.control_fd == kControlFd)
      ::fcntl(kControlFd, F_SETFD, 0);
    else
      ::dup2(plan.control_fd, kControlFd);
  }
  ::execve(plan.file, plan.argv.data(), plan.envp.data());
  const int why = errno;
  // If this fails, the agent only learns the exit code.
  [[maybe_unused]] const auto written = ::write(exec_pipe, &why, sizeof(why));
  ::_exit(127);
}

// 0: execve() succeeded and closed the pipe. If a sibling between fork and exec still holds the
// pipe, read() gives EAGAIN (O_NONBLOCK); that is 0 too.
int read_exec_errno(int fd) {
  int why = 0;
  return ::read(fd, &why, sizeof(why)) == static_cast<ssize_t>(sizeof(why)) ? why : 0;
}

// Returns whether the process has a handler for `signo` (proc_pid_status(5), SigCgt: a mask in
// hex).
bool handles(pid_t pid, int signo) {
  constexpr std::string_view kCaught = "\nSigCgt:";
  const std::string status = read_proc_file(pid, "status");
  const auto line = status.find(kCaught);
  if (line == std::string::npos) return false;
  const auto mask = std::strtoull(status.c_str() + line + kCaught.size(), nullptr, 16);
  return (mask >> static_cast<unsigned>(signo - 1) & 1U) != 0;
}

// Looks at the executable: a program can set comm and argv[0] as it likes. False if it is dead.
bool is_shell(pid_t pid) {
  constexpr std::array kShells = {"sh",  "bash", "dash", "zsh",  "ksh",    "mksh",
                                  "ash", "csh",  "tcsh", "fish", "busybox"};
  std::error_code gone;
  const auto program =
      std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/exe", gone).filename();
  return std::find(kShells.begin(), kShells.end(), program.string()) != kShells.end();
}

// Returns whether a process lives in the group of `leader`, which is dead and not yet reaped. We
// look only below us: we are the subreaper, so every member is there. A member whose parent is dead
// is our child. So its death raises SIGCHLD, and reap() looks again.
bool group_lives(pid_t leader) {
  const std::vector<pid_t> below = descendants(::getpid());
  return std::any_of(below.begin(), below.end(), [leader](pid_t pid) {
    if (pid == leader || ::getpgid(pid) != leader) return false;
    const auto stat = read_process_stat(pid);
    return stat && !stat->is_dead();
  });
}

void signal_group(pid_t pid, int signo) {
  // A worker that has not reached setsid() yet has no group of its own: then it gets the signal
  // alone. SIGCONT comes last, so a stopped worker finds the signal when it goes on.
  if (::killpg(pid, signo) != 0) ::kill(pid, signo);
  ::killpg(pid, SIGCONT);
}

// Returns whether a child, dead and not reaped yet, has ended with exit code 0.
bool has_ended_well(pid_t pid) {
  siginfo_t end{};
  return ::waitid(P_PID, static_cast<id_t>(pid), &end, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         end.si_code == CLD_EXITED && end.si_status == 0;
}

// Moves this process there. async-signal-safe. If that fails, end_descendants() must find what the
// worker leaves.
void enter_cgroup(int folder) {
  const int members = ::openat(folder, "cgroup.procs", O_WRONLY | O_CLOEXEC);
  if (members < 0) return;
  [[maybe_unused]] const auto written = ::write(members, "0", 1);  // 0: who writes (cgroups(7))
  ::close(members);
}

bool has_dumped_core(int status) { return WIFSIGNALED(status) && WCOREDUMP(status); }

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
  auto made = make_process(spec, cgroup_fd_);
  if (!made) return made.error();
  Worker& worker = workers_[made->pid];
  worker.local_rank = spec.local_rank;
  worker.exec_pipe = std::move(made->exec_pipe);
  watch(made->pid, worker);
  return made->pid;
}

Result<pid_t> Children::spawn_standby(const SpawnSpec& spec, int cgroup_fd) {
  const auto made = make_process(spec, cgroup_fd);
  if (!made) return made.error();
  standbys_.insert(made->pid);
  return made->pid;
}

bool Children::take_standby(pid_t pid) {
  const auto stat = read_process_stat(pid);
  if (!stat || stat->parent != ::getpid()) return false;
  standbys_.insert(pid);
  return true;
}

void Children::end_standby(pid_t standby) const {
  if (standbys_.contains(standby)) ::kill(standby, SIGKILL);
}

void Children::adopt(pid_t standby, int local_rank) {
  standbys_.erase(standby);
  Worker& worker = workers_[standby];
  worker.local_rank = local_rank;
  watch(standby, worker);
}

Result<Children::NewProcess> Children::make_process(const SpawnSpec& spec, int cgroup_fd) const {
  if (!has_call(NewCall::kPidfdOpen)) record_child_deaths();
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
    return Error(ErrorCode::kSystem, fmt::format("make a pipe for local rank {}: {}",
                                                 spec.local_rank, describe_errno(errno)));
  FileHandle exec_errno_reader(ends[0]);
  const FileHandle exec_errno_writer(ends[1]);
  const ChildPlan plan = {.file = spec.file.c_str(),
                          .argv = pointers(spec.argv),
                          .envp = pointers(spec.env),
                          .stdout_fd = spec.out.get(),
                          .stderr_fd = spec.err.get(),
                          .control_fd = spec.control.get(),
                          .exec_pipe = exec_errno_writer.get(),
                          .agent = ::getpid(),
                          .keep_ignored = &keep_ignored_,
                          .descriptors = worker_descriptors_ ? &*worker_descriptors_ : nullptr};
  // No signal may reach the child while it still has our handlers. Asio's handler writes into a
  // pipe that the child shares with us: we would take the child's SIGTERM for ours. A signal that
  // comes meanwhile stays pending until reset_signals().
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = fork_into(cgroup_fd);
  if (pid == 0) become_worker(plan);
  const int fork_errno = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0)
    return Error(ErrorCode::kSystem, fmt::format("make a process for local rank {}: {}",
                                                 spec.local_rank, describe_errno(fork_errno)));
  return NewProcess{pid, std::move(exec_errno_reader)};
}

// If there is a cgroup, the worker is born into it (clone3(2), CLONE_INTO_CGROUP, Linux 5.7). To
// move a live process takes some 20 ms, because the kernel waits for an RCU grace period. So a
// worker enters by itself only if the call is not there.
pid_t Children::fork_into(int cgroup_fd) {
  const bool enters = cgroup_fd >= 0 && !has_call(NewCall::kClone3);
  if (cgroup_fd >= 0 && !enters) {
    clone_args args{};
    args.flags = CLONE_INTO_CGROUP;
    args.exit_signal = SIGCHLD;
    args.cgroup = static_cast<decltype(args.cgroup)>(cgroup_fd);
    const long pid = ::syscall(SYS_clone3, &args, sizeof(args));
    if (pid >= 0) return static_cast<pid_t>(pid);
    // The cgroup is full or gone. The worker then starts without it, and end_descendants() must
    // find what it leaves.
  }
  const pid_t pid = ::fork();
  if (pid == 0 && enters) enter_cgroup(cgroup_fd);
  return pid;
}

// Without a pidfd the order of deaths is that of their signals.
void Children::watch(pid_t pid, Worker& worker) const {
  worker.pidfd = open_pidfd(pid);
  if (worker.pidfd.get() < 0) return record_child_deaths();
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = pid;
  ::epoll_ctl(deaths_.get(), EPOLL_CTL_ADD, worker.pidfd.get(), &event);
}

pid_t Children::pid_of(int local_rank) const {
  const auto found = std::ranges::find_if(
      workers_, [local_rank](const auto& entry) { return entry.second.local_rank == local_rank; });
  return found == workers_.end() ? 0 : found->first;
}

std::optional<WorkerExit> Children::coming_failure(int local_rank) const {
  const pid_t pid = pid_of(local_rank);
  if (pid == 0) return std::nullopt;
  constexpr int kExitCode = 52;  // 0 while the process lives
  const int status = static_cast<int>(read_stat_number(pid, kExitCode).value_or(0));
  if (exit_code_of(status) == 0) return std::nullopt;
  return WorkerExit{.local_rank = local_rank,
                    .pid = pid,
                    .exit_code = exit_code_of(status),
                    .ended_for = workers_.at(pid).ended_for,
                    .dumped_core = has_dumped_core(status)};
}

std::vector<pid_t> Children::pids() const {
  std::vector<pid_t> found;
  for (const auto& [pid, worker] : workers_) found.push_back(pid);
  return found;
}

void Children::signal_groups(int signo) {
  for (auto& [pid, worker] : workers_) {
    // Its group dies now, so reap() need not wait for it.
    if (signo == SIGKILL) worker.wraps = false;
    worker.is_asked = true;
    signal_group(pid, signo);
  }
}

void Children::end_worker(int local_rank, const std::string& why) {
  if (const pid_t pid = note_end(local_rank, why); pid != 0) signal_group(pid, SIGKILL);
}

void Children::abort_worker(int local_rank, const std::string& why) {
  if (const pid_t pid = note_end(local_rank, why); pid != 0) ::kill(pid, SIGABRT);
}

// Returns the worker's pid; 0 if it is gone.
pid_t Children::note_end(int local_rank, const std::string& why) {
  const auto worker = workers_.find(pid_of(local_rank));
  if (worker == workers_.end()) return 0;
  worker->second.wraps = false;
  worker->second.is_asked = true;
  worker->second.ended_for = why;
  return worker->first;
}

void Children::ask_to_end(int signo) {
  for (auto& [pid, worker] : workers_) ask(pid, worker, signo);
}

void Children::ask_worker_to_end(int local_rank, int signo) {
  const auto found = workers_.find(pid_of(local_rank));
  if (found != workers_.end()) ask(found->first, found->second, signo);
}

void Children::ask(pid_t pid, Worker& worker, int signo) {
  worker.is_asked = true;
  if (handles(pid, signo)) {
    ::kill(pid, signo);
    ::killpg(pid, SIGCONT);
  } else {
    worker.wraps = is_shell(pid);
    signal_group(pid, signo);
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
    // waitid() below would find the dead shell that is still needed again and again.
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

// Children that are no workers are orphans. Nobody asks for their status, but they stay zombies.
void Children::reap_orphans() {
  for (const pid_t child : own_children()) {
    if (!workers_.contains(child) && ::waitpid(child, nullptr, WNOHANG) > 0) standbys_.erase(child);
  }
}

// In the order of their deaths. Several may have died before we looked, and the report must name
// the first of them as the root cause.
std::vector<pid_t> Children::dead_workers() const {
  std::vector<pid_t> dead = dead_by_pidfd();
  std::vector<pid_t> others;
  for (const auto& [pid, worker] : workers_) {
    if (std::ranges::find(dead, pid) == dead.end() && has_ended(pid)) others.push_back(pid);
  }
  sort_by_deaths(others, take_child_deaths());
  dead.insert(dead.end(), others.begin(), others.end());
  return dead;
}

std::vector<pid_t> Children::dead_by_pidfd() const {
  std::vector<pid_t> dead;
  std::vector<epoll_event> events(workers_.size());
  if (events.empty()) return dead;
  const int count = ::epoll_wait(deaths_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    const pid_t pid = events[static_cast<std::size_t>(i)].data.fd;
    // A worker that was reaped may come up once more. epoll keeps its pidfd while a sibling between
    // fork and exec has a copy (epoll(7)).
    if (workers_.contains(pid)) dead.push_back(pid);
  }
  return dead;
}

// Returns whether `dead` is a shell whose program still runs. collect() would kill that program
// before its grace is over.
bool Children::is_still_needed(pid_t dead) const {
  const auto worker = workers_.find(dead);
  return worker != workers_.end() && worker->second.wraps && group_lives(dead);
}

// First kills the group, then reaps: a zombie keeps its pid, so killpg() cannot hit another
// process's group. Afterwards nobody uses the pid again. Processes that a failed worker leaves must
// not keep a GPU from the others, who still end.
void Children::collect(pid_t pid, std::vector<WorkerExit>& exits) {
  const auto known = workers_.extract(pid);
  const bool was_standby = standbys_.erase(pid) > 0;
  const bool is_kept = known && !known.mapped().is_asked && has_ended_well(pid);
  if (!is_kept && (known || was_standby)) ::killpg(pid, SIGKILL);
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (!known) return;
  const Worker& worker = known.mapped();
  exits.push_back({.local_rank = worker.local_rank,
                   .pid = pid,
                   .exit_code = exit_code_of(status),
                   .exec_errno = read_exec_errno(worker.exec_pipe.get()),
                   .ended_for = worker.ended_for,
                   .dumped_core = has_dumped_core(status)});
}

}  // namespace ddprun::agent
