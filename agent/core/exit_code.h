// The exit code of ddprun. Pure; any thread. By default the codes are torchrun's. With
// --exit-codes=detailed the root cause's own code is passed on. The codes below tell a scheduler
// why a job ended (docs/torchrun.md, "Exit codes").
#pragma once

#include <optional>

#include "agent/core/lifecycle.h"

namespace ddprun::agent {

// Detailed codes only. Shells and wrappers use 125 and above for themselves. Programs commonly use
// small numbers. So these lie between. 93 is that of nvidia-resiliency-ext.
inline constexpr int kExitNoProgress = 93;         // attempts in a row got nowhere
inline constexpr int kExitBudgetSpent = 120;       // failed again after the last allowed restart
inline constexpr int kExitRendezvousFailed = 121;  // timed out, refused, or its host was lost
// This launcher was told to stop, or the whole job was, or a node that the job cannot do without.
inline constexpr int kExitPreempted = 122;
inline constexpr int kExitLauncherFailed = 123;  // it could not go on (Lifecycle::give_up())
// The codes are a shell's: a program that signal n killed has 128 + n.
inline constexpr int kExitSignalBase = 128;

struct ExitFacts {
  bool detailed = false;
  bool workers_started = false;  // at least one attempt began on this node
  // --exit-preempted: the code of a job that was told to end; unset: as torchrun's, or detailed.
  std::optional<int> preempted{};
  int max_restarts = 0;
};

// Call it once the job has ended on this node.
int exit_code_of(const Ending& ending, const ExitFacts& facts);

}  // namespace ddprun::agent
