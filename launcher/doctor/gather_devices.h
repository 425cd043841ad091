// A part of gather.h: the workers' Python, and the GPUs with their driver. Each may take long; what
// they run is ended a little before `end`.
#pragma once

#include <chrono>

#include "launcher/doctor/node_facts.h"
#include "launcher/job/command.h"

namespace ddprun::launcher {

// The interpreter that build_command() would take. Torch is looked for and not imported: that takes
// seconds.
PythonFacts gather_python(const CommandFacts& files, std::chrono::steady_clock::time_point end);

// `counted`: NodeQuestion::gpus.
GpuFacts gather_gpus(int counted, std::chrono::steady_clock::time_point end);

}  // namespace ddprun::launcher
