#include "agent/network/node_spec.h"

#include <fmt/format.h>
#include <unistd.h>

namespace ddprun::agent {

rendezvous::NodeSpec node_spec(const AgentConfig& config, const std::string& hostname,
                               const StoreAddress& store) {
  const RendezvousPlan& plan = config.rendezvous;
  const RestartPlan& restarts = config.restarts;
  return {.node_id = fmt::format("{}-{}-{}", hostname, ::getpid(), config.job_cookie),
          .hostname = hostname,
          .local_world_size = config.worker_count,
          .role = config.role,
          .node_rank = plan.node_rank,
          .rank_is_preferred = plan.kind != RendezvousPlan::Kind::kStatic,
          .store_address = store.host,
          .store_port = store.port,
          .worker_store_port = store.worker_port,
          .max_restarts = restarts.max_restarts,
          .restart_window = restarts.window,
          .backoff = restarts.backoff,
          .backoff_max = restarts.backoff_max,
          .most_without_progress =
              restarts.ends_without_progress() ? restarts.most_without_progress : 0,
          .min_nodes = plan.min_nodes,
          .max_nodes = plan.max_nodes,
          .strike_rules = restarts.strikes,
          .settings = plan.settings};
}

}  // namespace ddprun::agent
