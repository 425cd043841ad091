// The environment a worker is given: one table for both directions. The agent encodes, the engine
// decodes. Names and meaning are torchrun 2.11's
// (torch/distributed/elastic/agent/server/local_elastic_agent.py); DDPRUN_* names are ours. Pure:
// reads no environment itself.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/result.h"

namespace ddprun {

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
  std::string error_file;        // empty: none
  // DDPRUN_JOB: names this job on this host; empty when another launcher started us.
  std::string job_cookie;

  bool operator==(const WorkerEnv&) const = default;
};

// All variables of `env`, in a fixed order, each once.
std::vector<std::pair<std::string, std::string>> encode(const WorkerEnv& env);

// Answers the value of an environment variable, or nothing where it is unset.
using EnvLookup = std::function<std::optional<std::string>(std::string_view name)>;

// What a worker finds in its environment. Nothing where RANK and WORLD_SIZE are both unset: a
// program started by hand, a world of one. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are then
// required (as by init_process_group's env://); the others have the defaults of one node. Errors
// name the variable, its value and what is accepted.
Result<std::optional<WorkerEnv>> decode_worker_env(const EnvLookup& lookup);

}  // namespace ddprun
