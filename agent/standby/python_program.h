// The programs that the Python hook can reach. Pure.
#pragma once

#include <optional>
#include <string>

#include "agent/core/config.h"

namespace ddprun::agent {

// Returns whether this command starts Python itself, and lets it read PYTHONPATH and sitecustomize.
// Such a command is without -E, -I and -S (Python's manual, "Command line and environment"). A
// wrapper script is no Python: it may start any.
bool takes_hook(const WorkerProgram& program);

// The program that Python runs.
struct PythonScript {
  std::string name;        // path of a file, or name of a module
  bool is_module = false;  // of `-m`
};

// Nothing for `-c`, for a program on stdin, and for what does not take the hook.
std::optional<PythonScript> script_of(const WorkerProgram& program);

}  // namespace ddprun::agent
