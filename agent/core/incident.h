// The cost of one incident: a worker that failed, a node that was lost, or a resize. Pure:
// IncidentClock hears what happens and when. An Incident comes out when the workers of the next
// attempt have done their first step. Every time is one that was seen. A stage that cannot be known
// is left out. The time until the next known moment belongs to the stage after it. Loop's thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agent/core/clock.h"
#include "rendezvous/core/rendezvous.h"

namespace ddprun::agent {

// One part of an incident, up to the moment that gives it its name.
struct IncidentStage {
  std::string name;
  std::chrono::nanoseconds length{};

  bool operator==(const IncidentStage&) const = default;
};

struct Incident {
  rendezvous::Failure cause;
  int attempt = 0;     // attempt_of() the round that broke
  int world_size = 0;  // of the round that broke
  // False if the new workers failed, or the job ended, before they had done a step.
  bool recovered = false;
  // In order of time. The first one, "detected", goes from the first sign of the failure, on
  // whatever node, until the action there. The others begin when this node heard of it.
  std::vector<IncidentStage> stages{};

  std::chrono::nanoseconds lost() const;
};

// "rank 5 on n3: killed by SIGKILL: detected 0.004, stopped 0.120, …; 0.324 s lost"
std::string incident_line(const Incident& incident);

// "detected 0.004 s, stopped 0.120 s, re-formed 0.030 s"
std::string stages_line(const std::vector<IncidentStage>& stages);

// The progress in a worker's page (proto/worker_page.h). Time{}: not yet.
struct WorkerProgress {
  Time first_line{};
  Time first_step{};
  std::uint64_t steps = 0;  // of its optimizers so far
  Time last_step{};
};

class IncidentClock {
 public:
  // How long a program is waited for that tells nothing, and one that tells only of its first line.
  static constexpr std::chrono::seconds kPatience{30};
  static constexpr std::chrono::minutes kLongest{10};
  // How often the workers' progress is looked at.
  static constexpr std::chrono::milliseconds kLook{250};

  // A worker of this node failed, or the round broke. Only the first one of a round counts.
  void broke(Time now);
  // The rendezvous has said why.
  void explained(const rendezvous::Failure& cause, const rendezvous::Round& round);
  // No worker of the broken round is left on this node.
  void stopped(Time now);
  // The workers of the next attempt are started. The incident before it, if it is still open, is
  // over: nobody will ever do its first step. Returns the stages of the incident up to now. None if
  // the job has just begun.
  std::vector<IncidentStage> formed(Time now);
  // Returns how far the workers are, by local rank. The incident, when it is over.
  std::optional<Incident> looked(const std::vector<WorkerProgress>& workers, Time now);
  // The attempt ends, or the job. Returns the facts that are known of an incident that is still
  // open.
  std::optional<Incident> cut_short(const std::vector<WorkerProgress>& workers);

  // Returns when to look. Time::max(): there is nothing to look for.
  Time look_again_at() const { return look_at_; }

 private:
  std::vector<IncidentStage> stages_until_formed() const;
  Incident finish(const std::vector<WorkerProgress>& workers);

  std::optional<Time> broke_;  // of the incident that begins
  std::optional<Time> stopped_;
  std::optional<Time> formed_;  // then the incident is open
  Incident incident_;
  Time look_at_ = Time::max();
};

}  // namespace ddprun::agent
