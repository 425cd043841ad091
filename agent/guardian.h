// The process that the user started. It forks the agent and then only forwards signals, waits, and,
// when the agent has ended in any way, SIGKILL included, ends every descendant that it inherits.
// The agent in turn ends everything when the guardian dies: whichever of the two is killed, the
// other cleans up. Both are subreapers, so nothing escapes by forking twice or by setsid. A
// third process, short-lived, looks beside the start for what launchers that are gone left here.
// Small on purpose: no threads, nothing that can fail late.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace ddprun::agent {

// What the agent is given by the guardian.
struct AgentStart {
  int closed_when_guardian_dies = -1;  // read end of a pipe; end of file = the guardian is gone
  std::vector<int> ignored_signals;    // signals ignored when ddprun was started; they stay so
  // Shared with the guardian, kNoteBytes long: the path of the temporary log folder, which the
  // guardian removes should the agent be killed. Empty text: none.
  char* temporary_folder = nullptr;
};

inline constexpr std::size_t kNoteBytes = 4096;  // PATH_MAX

// What the guardian must know of the job.
struct GuardedJob {
  std::string cookie;
  std::vector<int> signals;  // forwarded to the agent, beside the usual ones
};

// Runs `agent` in a child process and watches over it. In the child the signals that end a job are
// still blocked when `agent` starts: it installs its handlers, then calls unblock_signals().
// Returns, in the guardian only, the exit code of the whole: the agent's, or 128 + signal if it was
// killed. Must be called before any thread exists.
int run_guarded(const GuardedJob& job, const std::function<int(const AgentStart&)>& agent);

// Unblocks what run_guarded() blocked for `job`. For the agent, once its handlers are in place.
void unblock_signals(const std::vector<int>& job_signals);

}  // namespace ddprun::agent
