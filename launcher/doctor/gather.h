// Looks at this node: files below /proc and /sys, interfaces, limits, names; the workers' Python and
// nvidia-smi, which are run. All questions are asked at once, and those that are not answered by
// kGatherLimit stay open (bounded.h). It judges nothing. Main thread, at start.
#pragma once

#include <chrono>

#include "launcher/doctor/node_facts.h"

namespace ddprun::launcher {

inline constexpr std::chrono::milliseconds kGatherLimit{2500};

NodeFacts gather_node(const NodeQuestion& question);

}  // namespace ddprun::launcher
