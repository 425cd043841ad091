#include "daemon/daemon_status.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "rendezvous/control/pages/job_periods.h"

namespace ddprun::daemon {
namespace {

using rendezvous::MemberState;
using rendezvous::NodeSnapshot;

// A peer may say anything of its nodes.
constexpr int kMostRanks = 1'000'000'000;

bool is_in_round(const NodeSnapshot& node) {
  return node.state == MemberState::kRunning || node.state == MemberState::kSucceeded;
}

int count(const std::vector<NodeSnapshot>& nodes, MemberState state) {
  return static_cast<int>(std::ranges::count(nodes, state, &NodeSnapshot::state));
}

// Nodes come by rank; those without one come last.
void add_seats(const std::vector<NodeSnapshot>& nodes, http::JobStatus& job) {
  for (const NodeSnapshot& node : nodes) {
    const bool is_seated = is_in_round(node);
    job.seats.push_back({.node_rank = is_seated ? node.node_rank : -1,
                         .hostname = node.hostname,
                         .first_rank = is_seated ? job.world_size : -1,
                         .workers = node.workers,
                         .state = std::string(rendezvous::name_of(node.state))});
    if (!is_seated) continue;
    ++job.nodes_in_round;
    const int workers = std::clamp(node.workers, 0, kMostRanks);
    job.world_size = std::min(job.world_size, kMostRanks - workers) + workers;
  }
}

http::JobStatus shown_status(const ShownJob& shown, bool hides_ids) {
  http::JobStatus job = job_status(shown.control->status());
  if (hides_ids) job.id = fmt::format("{} (not shown: there is no token)", shown.number);
  job.sessions = static_cast<int>(shown.host->sessions());
  return job;
}

}  // namespace

http::JobStatus job_status(const rendezvous::JobSnapshot& known) {
  http::JobStatus job{.id = known.job,
                      .state = std::string(rendezvous::name_of(known.phase)),
                      .round = known.round,
                      .restarts = known.restarts,
                      .max_restarts = known.max_restarts,
                      .min_nodes = known.min_nodes,
                      .max_nodes = known.max_nodes,
                      .nodes_waiting = count(known.nodes, MemberState::kWaiting),
                      .spares = count(known.nodes, MemberState::kSpare),
                      .knows_all_seats = true};
  add_seats(known.nodes, job);
  for (auto one = known.incidents.rbegin(); one != known.incidents.rend(); ++one)
    job.reasons.push_back({http::wall_time(one->unix_ms), one->text});
  for (const rendezvous::Period& period : known.periods) http::add_period(period, job);
  return job;
}

http::StatusReport daemon_status(const DaemonFacts& facts) {
  http::StatusReport report{.program = "ddprund",
                            .hostname = facts.hostname,
                            .started = facts.started,
                            .now = std::chrono::system_clock::now(),
                            .is_leader = facts.leads};
  for (const ShownJob& job : facts.jobs) report.jobs.push_back(shown_status(job, facts.hides_ids));
  return report;
}

}  // namespace ddprun::daemon
