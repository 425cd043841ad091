// A part of gather.h: the workers' Python, and the GPUs with their driver. Each may take long.
#pragma once

#include <string>

#include "launcher/doctor/node_facts.h"

namespace ddprun::launcher {

// Torch is looked for and not imported: that takes seconds.
PythonFacts gather_python(const std::string& python);

GpuFacts gather_gpus();

}  // namespace ddprun::launcher
