#include "agent/core/exit_code.h"

namespace ddprun::agent {
namespace {

// Another node may have left. If it was told to end, no node has failed, and all of them may begin
// anew.
bool is_preempted(const Ending& ending) {
  if (ending.signal != 0 || ending.stopped) return true;
  const bool is_failure = ending.session_error || ending.launcher_failed || !ending.cause;
  return !is_failure && ending.cause->rank < 0 && ending.cause->exit_code < 0;
}

// The order matters. A signal or a lost rendezvous also makes workers fail. That failure is not the
// reason why the job ended.
int detailed_code(const Ending& ending, const ExitFacts& facts) {
  if (is_preempted(ending)) return kExitPreempted;
  if (ending.session_error) return kExitRendezvousFailed;
  if (ending.launcher_failed) return kExitLauncherFailed;
  if (ending.no_progress) return kExitNoProgress;
  if (!ending.cause) return 1;
  if (ending.cause->rank < 0) return 1;  // another node left
  // A worker's failure ends a job only when no restart is left.
  if (facts.max_restarts > 0 && !ending.cause->ends_job) return kExitBudgetSpent;
  const int code = ending.cause->exit_code;
  if (code < 0) return kExitSignalBase - code;
  return code != 0 ? code : 1;  // never 0 for a job that failed
}

}  // namespace

int exit_code_of(const Ending& ending, const ExitFacts& facts) {
  if (ending.succeeded || ending.drained) return 0;
  if (facts.preempted && is_preempted(ending)) return *facts.preempted;
  if (facts.detailed) return detailed_code(ending, facts);
  // torchrun installs its handlers with its first worker: a signal before that kills it.
  if (ending.signal != 0 && !facts.workers_started) return kExitSignalBase + ending.signal;
  return 1;
}

}  // namespace ddprun::agent
