#include "agent/guardian.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "agent/children.h"
#include "agent/descendants.h"

namespace ddprun::agent {
namespace {

// What the guardian passes on to the agent. SIGTSTP, SIGTTIN and SIGTTOU keep their meaning: a
// stopped guardian does not stop the job, as a stopped torchrun does not.
constexpr int kForwarded[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

sigset_t watched_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signo : kForwarded) ::sigaddset(&set, signo);
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

int watch(pid_t agent) {
  const sigset_t watched = watched_signals();
  int status = 0;
  while (!agent_is_dead(agent, status)) {
    siginfo_t info{};
    const int signo = ::sigwaitinfo(&watched, &info);
    if (signo > 0 && signo != SIGCHLD) ::kill(agent, signo);
  }
  for (const Stuck& left : end_descendants()) {
    std::fprintf(
        stderr,
        "ddprun: process %d (%s) does not end after SIGKILL; it waits in the kernel in %s; left\n",
        left.pid, left.name.c_str(), left.wait_channel.c_str());
  }
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  std::fprintf(stderr, "ddprun: the agent was killed by %s; all its processes were ended\n",
               signal_name(WTERMSIG(status)).c_str());
  return 128 + WTERMSIG(status);
}

}  // namespace

int run_guarded(const std::function<int(const GuardianLink&)>& agent) {
  GuardianLink link{.ignored_signals = ignored_signals()};
  const sigset_t watched = watched_signals();
  ::sigprocmask(SIG_BLOCK, &watched, nullptr);
  ::signal(SIGCHLD, SIG_DFL);  // ignored by who started us, it would have the kernel reap the agent
                               // without a word
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  int alive[2];
  const pid_t guardian = ::getpid();
  const pid_t child = ::pipe2(alive, O_CLOEXEC) == 0 ? ::fork() : -1;
  if (child < 0) {
    std::fprintf(stderr, "ddprun: make the agent process: %s\n", ::strerrordesc_np(errno));
    return 1;
  }
  if (child > 0) {
    ::close(alive[0]);
    return watch(child);
  }
  ::close(alive[1]);
  // A session of its own: a Ctrl-C of the terminal or a `kill -9 %1` of the shell hits the guardian
  // alone.
  ::setsid();
  // Named apart from the guardian, so that `pkill -9 ddprun` leaves one of the two to clean up.
  ::prctl(PR_SET_NAME, "ddp-agent");
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  link.closed_when_guardian_dies = alive[0];
  if (::getppid() != guardian) ::_exit(1);
  const int exit_code = agent(link);
  std::fflush(nullptr);
  ::_exit(exit_code);  // no destructors of statics: the guardian's copy of the program goes on
}

void unblock_signals() {
  const sigset_t watched = watched_signals();
  ::sigprocmask(SIG_UNBLOCK, &watched, nullptr);
}

}  // namespace ddprun::agent
