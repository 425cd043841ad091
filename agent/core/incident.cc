#include "agent/core/incident.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "agent/core/lifecycle.h"
#include "base/duration.h"
#include "base/shown_text.h"
#include "base/signal_name.h"

namespace ddprun::agent {
namespace {

std::string who(const rendezvous::Failure& cause) {
  if (cause.rank < 0) return shown_text(cause.message);
  return fmt::format("rank {} on {}: {}", cause.rank, shown_text(cause.hostname),
                     cause.exit_code < 0 ? "killed by " + signal_name(-cause.exit_code)
                                         : fmt::format("ended with exit code {}", cause.exit_code));
}

// Returns the moment when the last worker was there. Nothing if one of them was not, or if it is
// not known.
template <typename Moment>
std::optional<Time> last(const std::vector<WorkerProgress>& workers, Moment moment) {
  Time latest{};
  for (const WorkerProgress& worker : workers) {
    if (worker.*moment == Time{}) return std::nullopt;
    latest = std::max(latest, worker.*moment);
  }
  return workers.empty() ? std::nullopt : std::optional(latest);
}

}  // namespace

std::chrono::nanoseconds Incident::lost() const {
  return std::accumulate(stages.begin(), stages.end(), std::chrono::nanoseconds{},
                         [](auto sum, const IncidentStage& stage) { return sum + stage.length; });
}

std::string incident_line(const Incident& incident) {
  std::string stages;
  for (const IncidentStage& stage : incident.stages)
    stages += fmt::format("{}{} {:.3f}", stages.empty() ? "" : ", ", stage.name,
                          in_seconds(stage.length));
  return fmt::format("{}: {}; {:.3f} s lost", who(incident.cause), stages,
                     in_seconds(incident.lost()));
}

std::string stages_line(const std::vector<IncidentStage>& stages) {
  std::string line;
  for (const IncidentStage& stage : stages)
    line += fmt::format("{}{} {:.3f} s", line.empty() ? "" : ", ", stage.name,
                        in_seconds(stage.length));
  return line;
}

void IncidentClock::broke(Time now) {
  if (!broke_) broke_ = now;
}

void IncidentClock::explained(const rendezvous::Failure& cause, const rendezvous::Round& round) {
  incident_ = {.cause = cause, .attempt = attempt_of(round), .world_size = round.world_size};
}

void IncidentClock::stopped(Time now) {
  if (broke_) stopped_ = now;
}

std::vector<IncidentStage> IncidentClock::formed(Time now) {
  if (!broke_ || !stopped_) return {};
  formed_ = now;
  look_at_ = now + kLook;
  return stages_until_formed();
}

std::optional<Incident> IncidentClock::looked(const std::vector<WorkerProgress>& workers,
                                              Time now) {
  if (!formed_) return std::nullopt;
  // A worker that shows its first line may do its first step late, because it loads a checkpoint
  // before.
  const bool tells = last(workers, &WorkerProgress::first_line).has_value();
  const bool done = last(workers, &WorkerProgress::first_step).has_value();
  if (!done && now < *formed_ + (tells ? kLongest : kPatience)) {
    // The longer it takes, the less often.
    look_at_ = now + std::max<Time::duration>(kLook, (now - *formed_) / 8);
    return std::nullopt;
  }
  Incident incident = finish(workers);
  incident.recovered = true;
  return incident;
}

std::optional<Incident> IncidentClock::cut_short(const std::vector<WorkerProgress>& workers) {
  if (!formed_) return std::nullopt;
  Incident incident = finish(workers);
  incident.recovered = last(workers, &WorkerProgress::first_step).has_value();
  return incident;
}

// Called only when the incident is open: then its moments are there.
std::vector<IncidentStage> IncidentClock::stages_until_formed() const {
  std::vector<IncidentStage> stages;
  if (incident_.cause.noticed_after) stages.push_back({"detected", *incident_.cause.noticed_after});
  stages.push_back({"stopped", *stopped_ - *broke_});
  stages.push_back({"re-formed", *formed_ - *stopped_});
  return stages;
}

Incident IncidentClock::finish(const std::vector<WorkerProgress>& workers) {
  incident_.stages = stages_until_formed();
  Time before = *formed_;
  const auto add = [&](const char* name, std::optional<Time> moment) {
    if (!moment) return;
    incident_.stages.push_back({name, std::max(*moment - before, Time::duration{})});
    before = std::max(before, *moment);
  };
  add("first line", last(workers, &WorkerProgress::first_line));
  add("first step", last(workers, &WorkerProgress::first_step));
  broke_.reset();
  stopped_.reset();
  formed_.reset();
  look_at_ = Time::max();
  return std::exchange(incident_, {});
}

}  // namespace ddprun::agent
