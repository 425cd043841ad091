// What ddprun exits with. Pure. torchrun's codes by default; --exit-codes=detailed passes the root
// cause on and tells apart what a scheduler acts on (docs/torchrun.md, "Exit codes").
#pragma once

#include "agent/core/lifecycle.h"

namespace ddprun::agent {

// Detailed only. Below 125, where shells and wrappers begin, and above what programs commonly use.
inline constexpr int kExitBudgetSpent = 120;       // failed again after the last allowed restart
inline constexpr int kExitRendezvousFailed = 121;  // timed out, refused, or its host was lost
inline constexpr int kExitPreempted = 122;         // this launcher was told to stop
inline constexpr int kExitLauncherFailed = 123;    // no log folder, no port, no process to be had
// A shell's number for a program killed by signal n is this plus n.
inline constexpr int kExitSignalBase = 128;

struct ExitFacts {
  bool detailed = false;
  bool workers_started = false;
  int max_restarts = 0;
};

int exit_code_of(const Ending& ending, const ExitFacts& facts);

}  // namespace ddprun::agent
