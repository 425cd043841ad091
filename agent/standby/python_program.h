// The programs that the Python hook can reach. Pure.
#pragma once

#include "agent/core/config.h"

namespace ddprun::agent {

// Returns whether this command starts Python itself, and lets it read PYTHONPATH and sitecustomize.
// Such a command is without -E, -I and -S (Python's manual, "Command line and environment"). A
// wrapper script is no Python: it may start any.
bool takes_hook(const WorkerProgram& program);

}  // namespace ddprun::agent
