// How fast this node's workers made steps during the last minutes, for the status page. Pure: the
// caller says how far the workers are, and when. Owned by StatusPort.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "agent/core/clock.h"
#include "agent/core/incident.h"
#include "rendezvous/control/pages/status_report.h"

namespace ddprun::agent {

class StepHistory {
 public:
  // How often it is told of the workers.
  static constexpr std::chrono::seconds kEvery{5};

  // `workers`: by local rank. One with fewer steps than before has started anew.
  void note(const std::vector<WorkerProgress>& workers, Time now);
  // The oldest first. Empty: that worker is not known.
  std::vector<http::StepSample> of(std::size_t local_rank, Time now) const;

 private:
  struct Sample {
    Time when{};
    double per_second = 0;
    double step_s = 0;
  };
  struct Worker {
    std::uint64_t steps = 0;
    Time last_step{};
    Time when{};
    std::deque<Sample> samples{};
  };

  static void note_one(Worker& worker, const WorkerProgress& progress, Time now);

  std::vector<Worker> workers_;
};

}  // namespace ddprun::agent
