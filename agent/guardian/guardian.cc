#include "agent/guardian/guardian.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <new>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/core/exit_code.h"
#include "agent/core/lease_guard.h"
#include "agent/output/log_tree.h"
#include "agent/processes/children.h"
#include "agent/processes/containment.h"
#include "agent/processes/descendants.h"
#include "agent/processes/job_cgroup.h"
#include "agent/processes/orphans.h"
#include "agent/processes/owner_lock.h"
#include "agent/processes/process.h"
#include "agent/processes/scratch_folder.h"
#include "base/limit_hint.h"
#include "base/log.h"
#include "base/process_end.h"
#include "base/signal_name.h"

namespace ddprun::agent {
namespace {

using Clock = std::chrono::steady_clock;

// How long the end of a job waits for the sweeper: enough to read /proc, too short to be noticed.
constexpr std::chrono::milliseconds kSweeperPatience{200};
static_assert(kAgentLimit > kKillLimit + kEndsAlone + kLeftBehindGrace + kSweepLimit + kLeaveLimit,
              "an agent that works must not be killed");

// The signals that the guardian waits for: those of the job, and SIGCHLD for the agent's end.
// SIGTSTP, SIGTTIN and SIGTTOU are not among them: they stop the guardian, and the job runs on.
// torchrun's workers run on as well when torchrun is stopped.
sigset_t watched_signals(const SignalPlan& plan) {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signo : handled_signals(plan)) ::sigaddset(&set, signo);
  ::sigaddset(&set, SIGCHLD);
  return set;
}

// Prints text if stderr takes it now. The guardian must not wait for a reader: what it has to end
// may hang because of that reader. poll() promises room for a short write (pipe(7), PIPE_BUF).
void say(const std::string& text) {
  pollfd writable{STDERR_FILENO, POLLOUT, 0};
  if (::poll(&writable, 1, 0) > 0) [[maybe_unused]]
    const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

// Two senders make two signals of one request. timeout(1), which started us, signals its child and
// then its process group. Slurm 22.05 sends SIGTERM, SIGCONT and SIGTERM within milliseconds when a
// job's time is over. So a signal of theirs is the first request or none; both end by SIGKILL what
// goes on.
bool repeats_itself(pid_t sender) {
  if (sender <= 0) return false;
  const std::string name = process_name(sender);
  return name == "slurmstepd" || (name == "timeout" && sender == ::getppid());
}

// The agent as the guardian sees it. Passes signals on to the agent, and kills it if it does not
// end in time after the second one.
class WatchedAgent {
 public:
  // `pipe`: its write end, not owned. It must not block: a stopped agent reads nothing.
  WatchedAgent(pid_t pid, int pipe, const GuardedJob& job, LeaseNote& lease)
      : pid_(pid), pipe_(pipe), job_(job), lease_(lease) {}

  // Passes signals on until the agent is dead. Kills it if it still lives at kill_at_. Returns its
  // wait status (waitpid(2)). Signals in `ignored` are not passed on.
  int wait_for_end(const std::vector<int>& ignored);

 private:
  bool reap();
  void pass_on(int signo);
  void look_at_lease();
  void end_workers();
  // `from` has the pid of who sent it. -1: none came before something is due, or the wait was
  // interrupted.
  int next_signal(const sigset_t& watched, siginfo_t& from) const;

  const pid_t pid_;
  const int pipe_;
  const GuardedJob& job_;
  LeaseNote& lease_;
  LeaseGuard lease_guard_;
  int requests_ = 0;
  bool is_noticed_ = false;
  Clock::time_point kill_at_ = Clock::time_point::max();
  int status_ = 0;
};

// Collects all dead children, inherited orphans too. True if the agent is one of them.
bool WatchedAgent::reap() {
  int status = 0;
  for (pid_t dead = 0; (dead = ::waitpid(-1, &status, WNOHANG)) > 0;) {
    if (dead != pid_) continue;
    status_ = status;
    return true;
  }
  return false;
}

// Writes the signal's number into the pipe. With kill() the agent could not tell the guardian's
// signal from one to every process of the job (agent/core/stop_requests.h). Continues a stopped
// agent, so that it can act. The second request starts the agent's limit.
void WatchedAgent::pass_on(int signo) {
  const auto byte = static_cast<unsigned char>(signo);
  [[maybe_unused]] const auto written = ::write(pipe_, &byte, sizeof(byte));
  const SignalMeaning meaning = meaning_of(job_.signals, signo);
  if (meaning.is_message) return;
  ::kill(pid_, SIGCONT);
  // After a notice the agent needs its time. The next request is the first to end at once.
  if (meaning.is_notice && requests_ == 0 && !std::exchange(is_noticed_, true)) return;
  if (++requests_ == 2) kill_at_ = Clock::now() + kAgentLimit;
}

int WatchedAgent::next_signal(const sigset_t& watched, siginfo_t& from) const {
  const auto until = std::min(kill_at_, lease_guard_.next());
  if (until == Clock::time_point::max()) return ::sigwaitinfo(&watched, &from);
  const auto left = std::max(until - Clock::now(), Clock::duration::zero());
  const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
  const timespec limit{seconds.count(), std::chrono::nanoseconds(left - seconds).count()};
  return ::sigtimedwait(&watched, &from, &limit);
}

// A stopped agent cannot end its workers when its lease is over, and the others go on without it.
void WatchedAgent::look_at_lease() {
  const Time until{std::chrono::nanoseconds(lease_.workers_until)};
  if (until == Time{} && lease_guard_.next() == Time::max()) return;
  constexpr std::string_view kCannotRun = "TtD";  // stopped, traced, hanging in the kernel
  const auto stat = read_process_stat(pid_);
  const bool is_stopped = stat && kCannotRun.find(stat->state) != std::string_view::npos;
  if (lease_guard_.look({.workers_until = until, .is_stopped = is_stopped}, Clock::now()))
    end_workers();
}

// The agent lives on: it hears that it was given up when it continues. It reaps its children then,
// so their pids stay theirs.
void WatchedAgent::end_workers() {
  lease_.has_ended_workers = true;
  const std::size_t ended = kill_descendants(pid_, kKillDescendantsLimit);
  if (ended == 0) return;
  say(
      fmt::format("{}: the agent (pid {}) is stopped, and its lease is over: the others may go on "
                  "without this node, so its workers are killed ({} processes); `kill -CONT {}` "
                  "lets the agent go on\n",
                  job_.called, pid_, ended, pid_));
}

int WatchedAgent::wait_for_end(const std::vector<int>& ignored) {
  const sigset_t watched = watched_signals(job_.signals);
  while (!reap()) {
    // SIGCHLD stays pending while it is blocked, so a death between reap() and this wait ends it.
    siginfo_t from{};
    const int signo = next_signal(watched, from);
    const bool is_ignored = std::find(ignored.begin(), ignored.end(), signo) != ignored.end() ||
                            ((requests_ > 0 || is_noticed_) && repeats_itself(from.si_pid));
    if (signo > 0 && signo != SIGCHLD && !is_ignored) pass_on(signo);
    look_at_lease();
    if (Clock::now() < kill_at_) continue;
    const std::string where = wait_channel(pid_);
    ::kill(pid_, SIGKILL);
    say(
        fmt::format("{}: the agent (pid {}) does not end {} s after a second signal; it waits in "
                    "the kernel in {}; it is killed\n",
                    job_.called, pid_, kAgentLimit.count(), where));
    // Even a killed agent may hang in the kernel, on a disk that never answers. So wait no longer
    // than for any other orphan, and then count the agent as killed (wait status 9).
    ends_by(pid_, Clock::now() + kSweepLimit);
    return reap() ? status_ : SIGKILL;
  }
  return status_;
}

// Forks the sweeper, which ends what earlier launchers left on this host. It is a process of its
// own. If it reads /proc of a process that hangs in the kernel, it may hang for ever. It closes
// `agent_pipe`: otherwise the agent would not see the guardian die. It closes `lock` as well: it
// does not prove that the launcher lives.
pid_t start_sweeper(int agent_pipe, int lock) {
  const pid_t sweeper = ::fork();
  if (sweeper != 0) return sweeper;
  ::close(agent_pipe);
  ::close(lock);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::prctl(PR_SET_NAME, "ddp-sweep");
  end_orphans();
  ::_exit(0);
}

// Gives the sweeper a moment, then kills it: a very short job would leave it no time to work.
void end_sweeper(pid_t sweeper) {
  if (sweeper < 0) return;
  if (!ends_by(sweeper, Clock::now() + kSweeperPatience)) ::kill(sweeper, SIGKILL);
}

// Ends and removes all that a killed agent left. An agent that exits has done this itself.
void clean_up(const GuardedJob& job, const char* temporary_folder, const std::set<pid_t>& spared) {
  end_job_cgroup(job.cookie);  // first, and with one write: nothing in it can outrun us by forking
  const std::vector<Stuck> stuck = end_descendants(kSweepLimit, spared);
  end_job_cgroup(job.cookie);  // again: a cgroup can be removed only when it is empty
  remove_shared_memory(job.cookie);
  remove_scratch_folder(job.cookie);
  remove_owner_lock(job.cookie);
  if (*temporary_folder != '\0') remove_temporary_logs(temporary_folder, true);
  for (const Stuck& left : stuck) say(fmt::format("{}: {}\n", job.called, describe(left)));
}

struct WatchedParts {
  pid_t agent = 0;
  int pipe = -1;  // to the agent
  int lock = -1;  // of the job (owner_lock.h); -1: there is none
};

// Returns the program's exit code when all is over. `spared`: children that are older than the job.
int guard(const WatchedParts& parts, const GuardedJob& job, const AgentStart& start,
          std::set<pid_t> spared) {
  const pid_t sweeper = start_sweeper(parts.pipe, parts.lock);
  const int status = WatchedAgent(parts.agent, parts.pipe, job, start.shared->lease)
                         .wait_for_end(start.ignored_signals);
  end_sweeper(sweeper);
  spared.insert(sweeper);  // do not wait for one that hangs in the kernel
  if (WIFEXITED(status)) {
    // Mostly there is nothing left. But processes that the agent could not end became our children.
    end_descendants(kSweepLimit, spared);
    // An agent without a descriptor left cannot remove a folder.
    remove_scratch_folder(job.cookie);
    remove_owner_lock(job.cookie);
    return WEXITSTATUS(status);
  }
  clean_up(job, start.temporary_folder, spared);
  if (start.shared->has_said_why) return 1;
  // A library that gets no memory mostly aborts.
  const bool lacks_memory = WTERMSIG(status) == SIGABRT && has_memory_limit();
  say(fmt::format("{}: the agent was killed by {}; all its processes were ended{}\n", job.called,
                  signal_name(WTERMSIG(status)), lacks_memory ? "; " + limit_hint(ENOMEM) : ""));
  return kExitSignalBase + WTERMSIG(status);
}

}  // namespace

int run_guarded(const GuardedJob& job, const std::function<int(const AgentStart&)>& agent) {
  AgentStart start{.ignored_signals = ignored_signals()};
  const sigset_t watched = watched_signals(job.signals);
  ::pthread_sigmask(SIG_BLOCK, &watched, nullptr);
  // If our parent had it ignored, the kernel would reap the agent itself. Its exit status would be
  // lost (waitpid(2), NOTES).
  ::signal(SIGCHLD, SIG_DFL);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  int alive[2];
  const pid_t guardian = ::getpid();
  std::set<pid_t> earlier = own_children();  // `monitor & exec ddprun …`: not ours to end
  void* note = ::mmap(nullptr, kNoteBytes + sizeof(SharedNote), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  // Without it no other start ends what this one leaves.
  const auto lock = take_owner_lock(job.cookie);
  if (!lock) log::debug(lock.error().message());
  const bool prepared = note != MAP_FAILED && ::pipe2(alive, O_CLOEXEC) == 0;
  // It is made before the fork, so that both processes see it.
  if (prepared) start.shared = new (static_cast<char*>(note) + kNoteBytes) SharedNote;
  const pid_t child = prepared ? ::fork() : -1;
  if (child < 0) {
    const int why = errno;
    std::fprintf(stderr, "%s: make the agent process: %s\n", job.called.c_str(),
                 describe_errno(why).c_str());
    remove_owner_lock(job.cookie);
    return 1;
  }
  start.temporary_folder = static_cast<char*>(note);  // zeros: no folder
  if (child > 0) {
    ::close(alive[0]);
    // A stopped agent reads nothing: a write into the full pipe would block the guardian. Nobody
    // reads the pipe of a dead agent: a write would kill the guardian by SIGPIPE.
    ::fcntl(alive[1], F_SETFL, O_NONBLOCK);
    ::signal(SIGPIPE, SIG_IGN);
    return guard({child, alive[1], lock ? lock->get() : -1}, job, start, std::move(earlier));
  }
  ::close(alive[1]);
  // A session of its own: a Ctrl-C, or a `kill -9 %1` of the shell, then hits only the guardian.
  ::setsid();
  // The agent has a name of its own. So `pkill -9 ddprun` leaves it alive, and it cleans up.
  ::prctl(PR_SET_NAME, "ddp-agent");
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  start.guardian_pipe = alive[0];
  end_where_a_limit_is_hit(job.called, &start.shared->has_said_why);
  // The guardian died already: then the user wants no job.
  if (::getppid() != guardian) ::_exit(1);
  const int exit_code = agent(start);
  std::fflush(nullptr);
  if (::getppid() != guardian) remove_owner_lock(job.cookie);
  // exit() must not be called: handlers that were registered before the fork belong to the
  // guardian's copy.
  ::_exit(exit_code);
}

void unblock_signals(const SignalPlan& plan) {
  const sigset_t watched = watched_signals(plan);
  ::pthread_sigmask(SIG_UNBLOCK, &watched, nullptr);
}

void block_signals(const SignalPlan& plan) {
  const sigset_t watched = watched_signals(plan);
  ::pthread_sigmask(SIG_BLOCK, &watched, nullptr);
}

}  // namespace ddprun::agent
