#include "agent/report/incident_log.h"

#include <algorithm>
#include <iterator>

namespace ddprun::agent {
namespace {

constexpr const char* kLastOfForming = "re-formed";

}  // namespace

RestartReason reason_of(const rendezvous::RoundBroken& message) {
  if (message.is_resize) return RestartReason::kResize;
  return message.cause.rank < 0 ? RestartReason::kNodeLost : RestartReason::kWorkerFailed;
}

const char* name_of(RestartReason reason) {
  switch (reason) {
    case RestartReason::kWorkerFailed:
      return "worker_failed";
    case RestartReason::kNodeLost:
      return "node_lost";
    case RestartReason::kResize:
      return "resize";
  }
  return "";
}

IncidentLog::IncidentLog() {
  for (const char* name : {"detected", "stopped", kLastOfForming, "first line", "first step"})
    stages_.push_back({.name = name});
}

void IncidentLog::round_broken(const rendezvous::RoundBroken& message,
                               std::chrono::system_clock::time_point when) {
  ++restarts_[static_cast<std::size_t>(reason_of(message))];
  const std::string& text = message.cause.message;
  add(text.empty() ? "a worker failed" : text, when);
}

void IncidentLog::add(const std::string& text, std::chrono::system_clock::time_point when) {
  entries_.push_front({when, text});
  if (entries_.size() > kMostKept) entries_.pop_back();
}

void IncidentLog::replicas_differ(const std::string& text,
                                  std::chrono::system_clock::time_point when) {
  ++replica_differences_;
  add(text, when);
}

void IncidentLog::took(const std::vector<IncidentStage>& stages) {
  for (const IncidentStage& taken : stages) {
    const auto stage = std::ranges::find(stages_, taken.name, &Stage::name);
    if (stage == stages_.end()) continue;
    ++stage->count;
    stage->sum += taken.length;
    stage->last = taken.length;
  }
}

void IncidentLog::ended(const Incident& incident) {
  const auto formed = std::ranges::find(incident.stages, kLastOfForming, &IncidentStage::name);
  if (formed != incident.stages.end())
    took(std::vector<IncidentStage>(std::next(formed), incident.stages.end()));
}

}  // namespace ddprun::agent
