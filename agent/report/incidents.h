// Tells the cost of each incident. It is a line on the console, a line of JSON in the job's log
// folder, and one of --error-report. Shell around IncidentClock. Loop's thread; owned by Reporter.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "agent/core/incident.h"
#include "base/alarm.h"
#include "base/loop.h"

namespace ddprun::agent {

// One incident as a JSON object on one line; docs/recovery.md lists the fields.
std::string incident_json(const Incident& incident);

// The same of ranks that differ: it cost no time, and the job went on.
std::string replica_incident_json(const rendezvous::ReplicaVerdict& verdict, int attempt);

// And of ranks that are slower than the others.
std::string straggler_incident_json(const rendezvous::StragglerVerdict& verdict, int attempt);

class Incidents {
 public:
  // `progress` answers how far this node's workers are; `tell` is given each incident.
  Incidents(asio::io_context& loop, std::function<std::vector<WorkerProgress>()> progress,
            std::function<void(const Incident&)> tell);
  Incidents(const Incidents&) = delete;
  Incidents& operator=(const Incidents&) = delete;
  Incidents(Incidents&&) = delete;
  Incidents& operator=(Incidents&&) = delete;
  ~Incidents() = default;

  // Take the events of IncidentClock.
  void broke();
  void explained(const rendezvous::Failure& cause, const rendezvous::Round& round);
  void stopped();
  std::vector<IncidentStage> formed();
  // The job is over.
  void end();

 private:
  void look();
  void report(std::optional<Incident> incident);

  const std::function<std::vector<WorkerProgress>()> progress_;
  const std::function<void(const Incident&)> tell_;
  IncidentClock clock_;
  Alarm alarm_;
};

}  // namespace ddprun::agent
