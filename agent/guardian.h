// The process that the user started. It forks the agent. Then it only passes signals on and waits.
// When the agent has ended in any way, SIGKILL included, it ends every descendant that it inherits.
// The agent in turn ends everything when the guardian dies: whichever of the two is killed, the
// other cleans up. Both are subreapers, so nothing escapes by forking twice or by setsid. A
// third process, short-lived, looks beside the start for what launchers that are gone left here.
// Small on purpose: no threads, nothing that can fail late.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "agent/core/config.h"

namespace ddprun::agent {

// What the agent is given by the guardian.
struct AgentStart {
  // Read end of a pipe. One byte is the number of a signal that the guardian passes on; end of file
  // means that the guardian is gone.
  int guardian_pipe = -1;
  std::vector<int> ignored_signals;  // signals ignored when ddprun was started; they stay so
  // Shared with the guardian, kNoteBytes long: the path of the temporary log folder, which the
  // guardian removes should the agent be killed. Empty text: none.
  char* temporary_folder = nullptr;
};

// How long the agent has after a second request to end before the guardian kills it. Longer than
// an agent that works can need: it waits up to 10 s for killed workers (Lifecycle::Settings) and
// kSweepLimit for what they left. Only one that is stopped, or hangs on a log disk, needs longer.
inline constexpr std::chrono::seconds kAgentLimit{20};

inline constexpr std::size_t kNoteBytes = 4096;  // PATH_MAX

// What the guardian must know of the job.
struct GuardedJob {
  std::string called;  // the program's name in its own lines
  std::string cookie;
  SignalPlan signals;
};

// Runs `agent` in a child process and watches over it. In the child all signals that a job handles
// are still blocked when `agent` starts: it installs its handlers, then calls unblock_signals().
// Returns, in the guardian only, the exit code of the whole: the agent's, or 128 + signal if it was
// killed. Must be called before any thread exists.
int run_guarded(const GuardedJob& job, const std::function<int(const AgentStart&)>& agent);

// For the agent. Unblocks what run_guarded() blocked, once the handlers are in place; blocks it
// again at the end, before the handlers go: a late signal must not change the job's exit code.
void unblock_signals(const SignalPlan& plan);
void block_signals(const SignalPlan& plan);

}  // namespace ddprun::agent
