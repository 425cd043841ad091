#include "agent/report/incidents.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "agent/core/lifecycle.h"
#include "base/duration.h"
#include "base/signal_name.h"

namespace ddprun::agent {

std::string incident_json(const Incident& incident) {
  using Json = nlohmann::ordered_json;
  Json stages = Json::object();
  for (const IncidentStage& stage : incident.stages) stages[stage.name] = in_seconds(stage.length);
  Json json = {{"attempt", incident.attempt},
               {"recovered", incident.recovered},
               {"world_size", incident.world_size},
               {"hostname", incident.cause.hostname},
               {"reason", incident.cause.message}};
  if (incident.cause.rank >= 0) {
    json["rank"] = incident.cause.rank;
    json["exit_code"] = incident.cause.exit_code;
    if (incident.cause.exit_code < 0) json["signal"] = signal_name(-incident.cause.exit_code);
  }
  json["stages_s"] = std::move(stages);
  json["lost_s"] = in_seconds(incident.lost());
  return json.dump(-1, ' ', true, Json::error_handler_t::replace);
}

std::string replica_incident_json(const rendezvous::ReplicaVerdict& verdict, int attempt) {
  const nlohmann::ordered_json json = {{"attempt", attempt},
                                       {"kind", "replicas_differ"},
                                       {"step", verdict.step},
                                       {"ranks", verdict.ranks},
                                       {"reason", verdict.sentence}};
  return json.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
}

std::string straggler_incident_json(const rendezvous::StragglerVerdict& verdict, int attempt) {
  const nlohmann::ordered_json json = {{"attempt", attempt},
                                       {"kind", "stragglers"},
                                       {"ranks", verdict.ranks},
                                       {"reason", verdict.sentence}};
  return json.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
}

Incidents::Incidents(asio::io_context& loop, std::function<std::vector<WorkerProgress>()> progress,
                     std::function<void(const Incident&)> tell)
    : progress_(std::move(progress)), tell_(std::move(tell)), alarm_(loop, [this] { look(); }) {}

void Incidents::report(std::optional<Incident> incident) {
  alarm_.set(clock_.look_again_at());
  if (incident) tell_(*incident);
}

// An incident that is not over is over now: the workers that it waited for have failed.
void Incidents::broke() {
  report(clock_.cut_short(progress_()));
  clock_.broke(now());
}

void Incidents::explained(const rendezvous::Failure& cause, const rendezvous::Round& round) {
  clock_.explained(cause, round);
}

void Incidents::stopped() { clock_.stopped(now()); }

std::vector<IncidentStage> Incidents::formed() {
  std::vector<IncidentStage> stages = clock_.formed(now());
  alarm_.set(clock_.look_again_at());
  return stages;
}

void Incidents::look() { report(clock_.looked(progress_(), now())); }

void Incidents::end() { report(clock_.cut_short(progress_())); }

}  // namespace ddprun::agent
