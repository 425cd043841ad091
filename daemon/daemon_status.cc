#include "daemon/daemon_status.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace ddprun::daemon {
namespace {

using rendezvous::MemberState;
using rendezvous::NodeSnapshot;

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
    job.world_size += node.workers;
  }
}

http::JobStatus job_status(const ShownJob& shown, bool hides_ids) {
  const rendezvous::JobSnapshot known = shown.control->status();
  http::JobStatus job{
      .id = hides_ids ? fmt::format("{} (not shown: there is no token)", shown.number) : known.job,
      .state = std::string(rendezvous::name_of(known.phase)),
      .round = known.round,
      .restarts = known.restarts,
      .max_restarts = known.max_restarts,
      .min_nodes = known.min_nodes,
      .max_nodes = known.max_nodes,
      .nodes_waiting = count(known.nodes, MemberState::kWaiting),
      .spares = count(known.nodes, MemberState::kSpare),
      .sessions = static_cast<int>(shown.host->sessions()),
      .knows_all_seats = true};
  add_seats(known.nodes, job);
  for (auto one = known.incidents.rbegin(); one != known.incidents.rend(); ++one)
    job.reasons.push_back({http::WallTime(std::chrono::milliseconds(one->unix_ms)), one->text});
  return job;
}

}  // namespace

http::StatusReport daemon_status(const DaemonFacts& facts) {
  http::StatusReport report{.program = "ddprund",
                            .hostname = facts.hostname,
                            .started = facts.started,
                            .now = std::chrono::system_clock::now(),
                            .is_leader = facts.leads};
  for (const ShownJob& job : facts.jobs) report.jobs.push_back(job_status(job, facts.hides_ids));
  return report;
}

}  // namespace ddprun::daemon
