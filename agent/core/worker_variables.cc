#include "agent/core/worker_variables.h"

#include <algorithm>

#include "proto/worker_env.h"

namespace ddprun::agent {

Variables::iterator find_variable(Variables& env, const std::string& name) {
  return std::find_if(env.begin(), env.end(),
                      [&](const std::string& entry) { return entry.starts_with(name + "="); });
}

void set_variable(Variables& env, const std::string& name, const std::string& value) {
  const auto old = find_variable(env, name);
  if (old != env.end()) {
    *old = name + "=" + value;
  } else {
    env.push_back(name + "=" + value);
  }
}

namespace {

// Sets a variable that the user may set. A value that is there stays, also an empty one.
void add_variable(Variables& env, const std::string& name, const std::string& value) {
  if (find_variable(env, name) == env.end()) env.push_back(name + "=" + value);
}

WorkerEnv of_round(const AgentConfig& config, const rendezvous::Round& round, int local_rank,
                   const LocalFacts& facts) {
  const rendezvous::Seat& seat = facts.seat;
  return {.rank = seat.first_rank + local_rank,
          // With --virtual-local-rank a worker sees one device only, and that is its number 0.
          .local_rank = config.virtual_devices.empty() ? local_rank : 0,
          .world_size = round.world_size,
          .local_world_size = config.worker_count,
          .node_rank = seat.node_rank,
          .node_count = round.node_count,
          .role = config.role,
          .role_rank = seat.role_first_rank + local_rank,
          .role_world_size = seat.role_world_size,
          .master_addr = round.master_addr,
          .master_port = round.master_port,
          .run_id = config.rendezvous.run_id,
          .restart_count = round.restart_count,
          .max_restarts = config.restarts.max_restarts,
          .use_agent_store = config.rendezvous.shares_store,
          .error_file = facts.error_file,
          .job_cookie = config.job_cookie};
}

}  // namespace

std::vector<std::string> worker_variables(const AgentConfig& config, const rendezvous::Round& round,
                                          int local_rank, const LocalFacts& facts) {
  Variables env = config.base_env;
  for (const auto& [name, value] : encode(of_round(config, round, local_rank, facts)))
    set_variable(env, name, value);
  set_variable(env, "TORCHELASTIC_SIGNALS_TO_HANDLE", config.signals.stop_names);
  if (!config.virtual_devices.empty()) {
    const std::string& device = config.virtual_devices.at(static_cast<std::size_t>(local_rank));
    for (const std::string& name : config.device_variables) set_variable(env, name, device);
  }
  if (!facts.timer_file.empty()) set_variable(env, "TORCHELASTIC_TIMER_FILE", facts.timer_file);
  if (!facts.notice_file.empty()) set_variable(env, kNoticeVariable, facts.notice_file);
  // On one node Gloo's own choice is good: loopback reaches every worker.
  if (round.node_count > 1 && !facts.interface.empty())
    add_variable(env, "GLOO_SOCKET_IFNAME", facts.interface);
  // A rank that stands still gets SIGABRT, and says on stderr where it is.
  if (ends_ranks(config.on_hang)) add_variable(env, "PYTHONFAULTHANDLER", "1");
  if (config.check_replicas > 0)
    set_variable(env, kCheckReplicasVariable, std::to_string(config.check_replicas));
  return env;
}

}  // namespace ddprun::agent
