#include "agent/report/events.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

namespace ddprun::agent {
namespace {

using Json = nlohmann::json;

// torchrun's names: programs that read event lines compare them.
std::string_view name_of(EventState state) {
  switch (state) {
    case EventState::kRendezvous:
      return "RENDEZVOUS";
    case EventState::kAssignRanks:
      return "ASSIGN_WORKER_RANKS";
    case EventState::kStart:
      return "START";
    case EventState::kSucceeded:
      return "SUCCEEDED";
    case EventState::kFailed:
      return "FAILED";
  }
  return "";
}

std::string_view backend_of(RendezvousPlan::Kind kind) {
  if (kind == RendezvousPlan::Kind::kEtcd) return "etcd";
  return kind == RendezvousPlan::Kind::kC10d ? "c10d" : "static";
}

}  // namespace

// A field without a value is null and not left out: readers expect all of them. torchrun never sets
// `timestamp` either. The inner "metadata" is a text that holds JSON, as in torchrun's lines.
std::string event_line(const JobEvent& event, const AgentConfig& config, int restarts) {
  const Json nothing;
  Json metadata = {{"run_id", config.rendezvous.run_id},
                   {"global_rank", event.worker ? Json(event.rank) : nothing},
                   {"group_rank", nothing},
                   {"worker_id", event.worker ? Json(std::to_string(event.worker->pid)) : nothing},
                   {"role", config.role},
                   {"hostname", event.hostname},
                   {"state", name_of(event.state)},
                   {"total_run_time", event.since_start.count() / 1000},
                   {"rdzv_backend", backend_of(config.rendezvous.kind)},
                   {"raw_error", nothing},
                   {"metadata", Json({{"group_world_size", config.rendezvous.max_nodes},
                                      {"entry_point", config.entry}})
                                    .dump()},
                   {"agent_restarts", restarts},
                   {"duration_ms", event.since_start.count()}};
  if (event.worker) {
    metadata["local_rank"] = Json::array({event.worker->local_rank});
    if (event.worker->failed())
      metadata["raw_error"] = fmt::format("exitcode {}", event.worker->exit_code);
  }
  const Json line = {{"name", fmt::format("torchelastic.worker.status.{}", name_of(event.state))},
                     {"source", event.worker ? "WORKER" : "AGENT"},
                     {"timestamp", 0},
                     {"metadata", std::move(metadata)}};
  return line.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n";
}

std::string health_line(const Lifecycle& lifecycle) {
  const Json line = {{"phase", name_of(lifecycle.phase())},
                     {"workers", lifecycle.live_workers()},
                     {"attempt", lifecycle.round().restart_count}};
  return line.dump() + "\n";
}

}  // namespace ddprun::agent
