// The environment of one worker, in one table for both directions: the agent encodes, the engine
// decodes. Names and meaning are torchrun 2.11's
// (torch/distributed/elastic/agent/server/local_elastic_agent.py); names that begin with DDPRUN_
// are ours. Pure: it neither reads nor sets this process's environment. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/environment.h"
#include "base/result.h"

namespace ddprun {

// The defaults are those of a world of one worker.
struct WorkerEnv {
  int rank = 0;        // 0 … world_size-1 over all nodes
  int local_rank = 0;  // 0 … local_world_size-1 on this node
  int world_size = 1;  // workers of all nodes
  int local_world_size = 1;
  int node_rank = 0;   // GROUP_RANK
  int node_count = 1;  // GROUP_WORLD_SIZE
  std::string role = "default";
  int role_rank = 0;
  int role_world_size = 1;
  std::string master_addr = "127.0.0.1";
  std::uint16_t master_port = 0;
  std::string run_id = "none";
  int restart_count = 0;
  int max_restarts = 0;
  bool use_agent_store = false;  // a store already listens at master_addr:master_port
  std::string error_file;        // where the worker records its error; empty: nowhere
  // DDPRUN_JOB: names this job on this machine. Empty if another launcher started the worker.
  std::string job_cookie;

  bool operator==(const WorkerEnv&) const = default;
};

// All variables of `env` as name and value, each name once, in a fixed order. An empty text is a
// variable that is set and empty.
std::vector<std::pair<std::string, std::string>> encode(const WorkerEnv& env);

// Reads the worker's facts from its environment. Nothing if neither RANK nor WORLD_SIZE is set. So
// a person started the program by hand; it is a world of one. If one of the two is set, RANK,
// WORLD_SIZE, MASTER_ADDR and MASTER_PORT must all be set, as for init_process_group's env://. The
// other variables then have the defaults of one node. Errors: kNotFound (a required variable is
// missing), kInvalidArgument. The message names the variable, its value and what is accepted.
Result<std::optional<WorkerEnv>> decode_worker_env(const EnvLookup& lookup);

}  // namespace ddprun
