#include "agent/guardian.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <set>
#include <utility>

#include "agent/core/exit_code.h"
#include "agent/output/log_tree.h"
#include "agent/processes/children.h"
#include "agent/processes/containment.h"
#include "agent/processes/descendants.h"
#include "agent/processes/job_cgroup.h"
#include "agent/processes/leftovers.h"
#include "agent/processes/process.h"

namespace ddprun::agent {
namespace {

// What the guardian passes on to the agent. SIGTSTP, SIGTTIN and SIGTTOU keep their meaning: a
// stopped guardian does not stop the job, as a stopped torchrun does not.
constexpr int kForwarded[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

constexpr int kSweeperPatienceMs = 200;

sigset_t watched_signals(const std::vector<int>& job_signals) {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signo : kForwarded) ::sigaddset(&set, signo);
  for (const int signo : job_signals) ::sigaddset(&set, signo);
  ::sigaddset(&set, SIGCHLD);
  return set;
}

// Reaps; true once the agent is among the dead, its status in `status`.
bool agent_is_dead(pid_t agent, int& status) {
  int child_status = 0;
  for (pid_t dead = 0; (dead = ::waitpid(-1, &child_status, WNOHANG)) > 0;) {
    if (dead == agent) {
      status = child_status;
      return true;
    }
  }
  return false;
}

// Waits for the agent's end and passes signals on; its wait status.
int watch(pid_t agent, const sigset_t& watched) {
  int status = 0;
  while (!agent_is_dead(agent, status)) {
    siginfo_t info{};
    const int signo = ::sigwaitinfo(&watched, &info);
    if (signo > 0 && signo != SIGCHLD) ::kill(agent, signo);
  }
  return status;
}

// Looks for leftovers in a process of its own: it may take long, and for ever where a process hangs
// in the kernel. `agent_pipe` is what must not be held open by it.
pid_t start_sweeper(int agent_pipe) {
  const pid_t sweeper = ::fork();
  if (sweeper != 0) return sweeper;
  ::close(agent_pipe);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::prctl(PR_SET_NAME, "ddp-sweep");
  end_leftovers();
  ::_exit(0);
}

// A job of a moment waits a moment for it; it must not hold a host up.
void end_sweeper(pid_t sweeper) {
  if (sweeper < 0) return;
  const FileHandle process = open_pidfd(sweeper);
  pollfd ended{process.get(), POLLIN, 0};
  if (process.get() < 0 || ::poll(&ended, 1, kSweeperPatienceMs) > 0) return;
  ::kill(sweeper, SIGKILL);
}

// The agent cleans up after itself, unless it was killed.
void clean_up(const GuardedJob& job, const char* temporary_folder, const std::set<pid_t>& spared) {
  end_job_cgroup(job.cookie);
  for (const Stuck& left : end_descendants(kSweepLimit, spared))
    std::fprintf(stderr, "ddprun: %s\n", describe(left).c_str());
  end_job_cgroup(job.cookie);  // empty by now
  remove_shared_memory(job.cookie);
  if (*temporary_folder != '\0') remove_temporary_logs(temporary_folder, true);
}

int guard(pid_t agent, int agent_pipe, const GuardedJob& job, const char* temporary_folder,
          std::set<pid_t> spared) {
  const pid_t sweeper = start_sweeper(agent_pipe);
  const int status = watch(agent, watched_signals(job.signals));
  end_sweeper(sweeper);
  spared.insert(sweeper);  // one that hangs in the kernel is not waited for
  if (WIFEXITED(status)) {
    end_descendants(kSweepLimit, spared);
    return WEXITSTATUS(status);
  }
  clean_up(job, temporary_folder, spared);
  std::fprintf(stderr, "ddprun: the agent was killed by %s; all its processes were ended\n",
               signal_name(WTERMSIG(status)).c_str());
  return kExitSignalBase + WTERMSIG(status);
}

}  // namespace

int run_guarded(const GuardedJob& job, const std::function<int(const AgentStart&)>& agent) {
  AgentStart start{.ignored_signals = ignored_signals()};
  const sigset_t watched = watched_signals(job.signals);
  ::pthread_sigmask(SIG_BLOCK, &watched, nullptr);
  // Ignored by who started us, it would have the kernel reap the agent without a word.
  ::signal(SIGCHLD, SIG_DFL);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  int alive[2];
  const pid_t guardian = ::getpid();
  std::set<pid_t> earlier = own_children();  // `monitor & exec ddprun …`: not ours to end
  void* note =
      ::mmap(nullptr, kNoteBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  const bool prepared = note != MAP_FAILED && ::pipe2(alive, O_CLOEXEC) == 0;
  const pid_t child = prepared ? ::fork() : -1;
  if (child < 0) {
    std::fprintf(stderr, "ddprun: make the agent process: %s\n", ::strerrordesc_np(errno));
    return 1;
  }
  start.temporary_folder = static_cast<char*>(note);  // zeros: no folder
  if (child > 0) {
    ::close(alive[0]);
    return guard(child, alive[1], job, start.temporary_folder, std::move(earlier));
  }
  ::close(alive[1]);
  // A session of its own: a Ctrl-C of the terminal or a `kill -9 %1` of the shell hits the guardian
  // alone.
  ::setsid();
  // Named apart from the guardian, so that `pkill -9 ddprun` leaves one of the two to clean up.
  ::prctl(PR_SET_NAME, "ddp-agent");
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  start.closed_when_guardian_dies = alive[0];
  if (::getppid() != guardian) ::_exit(1);
  const int exit_code = agent(start);
  std::fflush(nullptr);
  ::_exit(exit_code);  // no destructors of statics: the guardian's copy of the program goes on
}

void unblock_signals(const std::vector<int>& job_signals) {
  const sigset_t watched = watched_signals(job_signals);
  ::pthread_sigmask(SIG_UNBLOCK, &watched, nullptr);
}

}  // namespace ddprun::agent
