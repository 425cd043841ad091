// The meaning of exit codes, those of workers and of ddprun. Plain values; any thread.
#pragma once

#include <algorithm>
#include <vector>

#include "agent/core/exit_map.h"

namespace ddprun::agent {

struct ExitPlan {
  ExitMap map{};                // --exit-map; a reason that it lacks has the code of --exit-codes
  std::vector<int> ends_job{};  // --exit-ends-job: a worker with such a code is the job's end
  // --exit-restarts: a worker with such a code is a failure, 0 as well, and a restart follows.
  std::vector<int> restarts{};
  std::vector<int> excludes_node{};  // --exit-excludes-node: a strike of the worker's node

  bool wants_restart(int exit_code) const {
    return std::ranges::find(restarts, exit_code) != restarts.end();
  }
  bool operator==(const ExitPlan&) const = default;
};

}  // namespace ddprun::agent
