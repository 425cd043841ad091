// Advice after a failure that we know, with the command to type. The failure may be a script that
// does not take `--local-rank`, or a Python without torch. It reads the last words of the root
// cause. Pure but for the questions in AgentConfig. Any thread.
#pragma once

#include <string>
#include <vector>

#include "agent/core/config.h"
#include "agent/report/report.h"

namespace ddprun::agent {

// One clause each, without newline. None if nothing is known that helps. `cause` is the root cause.
std::vector<std::string> advice_for(const ReportedWorker& cause, const AgentConfig& config);

}  // namespace ddprun::agent
