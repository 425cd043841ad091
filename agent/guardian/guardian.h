// The guardian: the process that the user started. It forks the agent. After that it only passes
// signals on and waits. When the agent has ended, by SIGKILL too, the guardian ends every
// descendant that is left. If the guardian is killed, the agent ends everything. So if one of the
// two is killed, the other cleans up. Both are subreapers (prctl(2)), so no process escapes by
// forking twice or by setsid(). If the agent is stopped for longer than the node's lease, the
// guardian kills the workers. A third process lives only for a short time. It looks for orphans of
// earlier launchers on this host, while the job already starts. The guardian is small on purpose.
// It has no threads, and nothing in it can fail late. It does not run workers and does not speak to
// the rendezvous.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "agent/core/config.h"

namespace ddprun::agent {

// The note of the agent to its guardian about its workers, in memory that both see (lease_guard.h).
struct LeaseNote {
  // Nanoseconds of the steady clock; 0: nothing ends the workers.
  std::atomic<std::int64_t> workers_until{0};
  // The guardian sets it when it has ended them, the agent clears it.
  std::atomic<bool> has_ended_workers{false};
};

// Memory that guardian and agent share.
struct SharedNote {
  LeaseNote lease;
  std::atomic<bool> has_said_why{false};  // the agent, which then killed itself (limit_hint.h)
};

// The things that the guardian gives to the agent.
struct AgentStart {
  // Read end of a pipe. Each byte is the number of a signal that the guardian passes on. End of
  // file means that the guardian is dead.
  int guardian_pipe = -1;
  std::vector<int> ignored_signals;  // ignored when ddprun was started (nohup); they stay ignored
  // Memory that the guardian can read too, kNoteBytes long. The agent writes the path of the
  // temporary log folder here. If the agent is killed, the guardian removes that folder. An empty
  // text if there is no such folder.
  char* temporary_folder = nullptr;
  SharedNote* shared = nullptr;
};

// How long the agent has after a second request to end; then the guardian kills it. A second
// request kills the workers. The agent waits for them up to kKillLimit, and up to kSweepLimit for
// what they left. It does not wait for a reader of its console. So an agent needs longer only if it
// is stopped, or if it hangs on a log disk.
inline constexpr std::chrono::seconds kAgentLimit{20};
// At the job's end a process that a worker left behind has so long after SIGTERM.
inline constexpr std::chrono::milliseconds kLeftBehindGrace{3000};

inline constexpr std::size_t kNoteBytes = 4096;  // PATH_MAX

// The facts of the job that the guardian must know.
struct GuardedJob {
  std::string called;  // the program's name in its own lines
  std::string cookie;  // of the job (AgentConfig::job_cookie): names what the agent may leave
  SignalPlan signals;
};

// Forks a child process, runs `agent` in it, and watches over it. It returns in the guardian only;
// the child exits with what `agent` returns. The value is the exit code for the whole program. It
// is the agent's, or 128 + signal number if a signal killed the agent. It is 1 if no process could
// be made. The signals of a job are still blocked in the child when `agent` starts. It must install
// its handlers and then call unblock_signals(). Call run_guarded() before any thread exists.
// fork(2) copies only the calling thread, and a lock that another thread holds would stay locked.
int run_guarded(const GuardedJob& job, const std::function<int(const AgentStart&)>& agent);

// For the agent. unblock_signals() unblocks what run_guarded() blocked: call it when the handlers
// are installed. block_signals() blocks the same signals again: call it at the end, before the
// handlers go. Otherwise a late signal would kill the agent and change the job's exit code.
void unblock_signals(const SignalPlan& plan);
void block_signals(const SignalPlan& plan);

}  // namespace ddprun::agent
