// Looks at this node: files below /proc and /sys, interfaces, limits, names; the workers' Python
// and nvidia-smi, which are run. All questions are asked at once. Those that are not answered in
// time stay open (base/bounded.h), with a thread each. It judges nothing. In a child that ends
// behind it (launcher/scheduler/run_child.h).
#pragma once

#include <chrono>
#include <string>

#include "launcher/doctor/node_facts.h"
#include "launcher/job/command.h"

namespace ddprun::launcher {

std::string own_host_name();

// `files` answers about SCRIPT and interpreters, which may take for ever.
NodeFacts gather_node(const NodeQuestion& question, const CommandFacts& files,
                      std::chrono::steady_clock::time_point end);

}  // namespace ddprun::launcher
