// A report of a made-up job, for the page at any size; and what tests of the page count. Pure.
#pragma once

#include <string>

#include "rendezvous/control/pages/status_report.h"

namespace ddprun::http {

enum class SimulatedState { kNothing, kRunning, kStandingStill, kFailed };

inline WallTime simulated_time(int seconds) {
  return WallTime(std::chrono::hours(24 * 365 * 50)) + std::chrono::seconds(seconds);
}

inline void add_simulated_nodes(int nodes, SimulatedState state, JobStatus& job) {
  for (int i = 0; i < nodes; ++i)
    job.seats.push_back({.node_rank = i,
                         .hostname = "gpu-" + std::to_string(i),
                         .first_rank = state == SimulatedState::kFailed ? -1 : 8 * i,
                         .workers = 8,
                         .state = state == SimulatedState::kFailed ? "stopping" : "running"});
  job.nodes_in_round = nodes;
  job.world_size = 8 * nodes;
}

// How often `part` is in `text`.
inline std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// A job of so many nodes with eight workers each, half an hour after its start. Its second round
// began after 20 min.
inline StatusReport simulated_report(int nodes, SimulatedState state) {
  StatusReport report{.program = "ddprund", .hostname = "head"};
  report.started = simulated_time(0);
  report.now = simulated_time(1800);
  report.is_leader = true;
  JobStatus job{.id = "train", .state = "waiting", .max_restarts = 3, .min_nodes = 1};
  job.max_nodes = nodes;
  job.knows_all_seats = true;
  if (state != SimulatedState::kNothing) {
    job.state = "running";
    job.round = 2;
    job.restarts = 1;
    add_simulated_nodes(nodes, state, job);
    job.periods = {{.begin = simulated_time(5), .end = simulated_time(1190), .round = 1},
                   {.begin = simulated_time(1200), .round = 2}};
    for (PeriodStatus& round : job.periods) round.workers = job.world_size;
    job.reasons = {{simulated_time(1190), "rank 3 (local rank 3, pid 4711) was killed by SIGKILL"}};
  }
  if (state == SimulatedState::kStandingStill) {
    job.standstill =
        "rank 2 does nothing at train (train.py:18); the others wait in all_reduce #51";
    job.stuck_ranks = {2};
    job.periods.push_back(
        {.is_round = false, .begin = simulated_time(1700), .text = job.standstill});
  }
  if (state == SimulatedState::kFailed) {
    job.state = "failed";
    job.periods.back().end = simulated_time(1750);
    job.reasons.insert(job.reasons.begin(),
                       {simulated_time(1750), "rank 1: exit code 1: CUDA out of memory"});
  }
  report.jobs.push_back(std::move(job));
  return report;
}

}  // namespace ddprun::http
