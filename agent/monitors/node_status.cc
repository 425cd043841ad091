#include "agent/monitors/node_status.h"

#include <algorithm>
#include <iterator>

#include "agent/processes/process.h"
#include "base/duration.h"
#include "rendezvous/control/pages/job_periods.h"

namespace ddprun::agent {
namespace {

using rendezvous::Member;
using rendezvous::MemberState;

// Without a token the id is enough to join, so it is not shown to other hosts. "none" is
// everybody's.
std::string shown_id(const NodeInfo& facts) {
  const RendezvousPlan& plan = facts.config.rendezvous;
  const bool is_secret = plan.max_nodes > 1 && plan.token.empty() && plan.run_id != "none";
  return facts.is_public && is_secret ? "(not shown: there is no token)" : plan.run_id;
}

std::string unhealthy(const NodeInfo& facts) {
  const Lifecycle& lifecycle = facts.lifecycle;
  if (lifecycle.ending().session_error)
    return "the session with the rendezvous is lost: " +
           lifecycle.ending().session_error->message();
  if (lifecycle.phase() == Phase::kDone) return "the job is over";
  if (facts.services == nullptr || !facts.services->is_open())
    return "the rendezvous is not reached yet";
  if (!facts.services->session().wait_status()) return "there is no session with the rendezvous";
  return {};
}

// Adds the nodes of the round, by rank, then the others, as they came.
void add_seats(const rendezvous::Members& members, http::JobStatus& job) {
  std::vector<const Member*> all;
  members.for_each([&all](const Member& member) { all.push_back(&member); });
  std::ranges::sort(all, [](const Member* left, const Member* right) {
    if (left->in_round() != right->in_round()) return left->in_round();
    return left->in_round() ? left->last_seat() < right->last_seat()
                            : left->arrival < right->arrival;
  });
  int first_rank = 0;
  for (const Member* const member : all) {
    const rendezvous::NodeSpec& spec = member->entrant.spec;
    const bool is_seated = member->in_round();
    job.seats.push_back({.node_rank = is_seated ? member->last_seat() : -1,
                         .hostname = spec.hostname,
                         .first_rank = is_seated ? first_rank : -1,
                         .workers = spec.local_world_size,
                         .state = std::string(rendezvous::name_of(member->state))});
    if (is_seated) first_rank += spec.local_world_size;
  }
}

void add_what_the_host_knows(const rendezvous::Host& host, http::JobStatus& job) {
  const rendezvous::Membership& membership = host.membership();
  const rendezvous::Members& members = membership.members();
  job.restarts = membership.restart_count();
  job.nodes_in_round =
      members.count(MemberState::kRunning) + members.count(MemberState::kSucceeded);
  job.nodes_waiting = members.count(MemberState::kWaiting);
  job.spares = members.count(MemberState::kSpare);
  job.sessions = static_cast<int>(host.sessions());
  job.knows_all_seats = true;
  add_seats(members, job);
}

void add_what_this_node_knows(const NodeInfo& facts, http::JobStatus& job) {
  const Lifecycle& lifecycle = facts.lifecycle;
  const bool is_seated =
      lifecycle.phase() == Phase::kRunning || lifecycle.phase() == Phase::kFinished;
  job.restarts = lifecycle.round().restart_count;
  job.nodes_in_round = is_seated ? lifecycle.round().node_count : 0;
  job.seats.push_back({.node_rank = is_seated ? lifecycle.seat().node_rank : -1,
                       .hostname = facts.hostname,
                       .first_rank = is_seated ? lifecycle.seat().first_rank : -1,
                       .workers = facts.config.worker_count,
                       .state = std::string(name_of(lifecycle.phase()))});
}

http::JobStatus job_status(const NodeInfo& facts, const rendezvous::Host* host) {
  const RendezvousPlan& plan = facts.config.rendezvous;
  http::JobStatus job{.id = shown_id(facts),
                      .state = std::string(name_of(facts.lifecycle.phase())),
                      .round = facts.lifecycle.round().number,
                      .world_size = facts.lifecycle.round().world_size,
                      .max_restarts = facts.config.restarts.max_restarts,
                      .min_nodes = plan.min_nodes,
                      .max_nodes = plan.max_nodes};
  for (std::size_t i = 0; i < kRestartReasons; ++i) {
    const auto reason = static_cast<RestartReason>(i);
    job.restarts_by_reason.push_back({name_of(reason), facts.incidents.restarts(reason)});
  }
  for (const IncidentLog::Entry& entry : facts.incidents.newest_first())
    job.reasons.push_back({entry.when, entry.text});
  for (const rendezvous::Period& period : facts.timeline.periods()) http::add_period(period, job);
  if (host != nullptr) {
    add_what_the_host_knows(*host, job);
  } else {
    add_what_this_node_knows(facts, job);
  }
  return job;
}

bool counts_steps(const WorkerProgress& worker) {
  // A program that tells nothing of itself has no steps, and not zero of them.
  return worker.first_line != Time{} || worker.steps > 0;
}

void add_workers(const NodeInfo& facts, http::NodeStatus& node) {
  for (int i = 0; i < facts.config.worker_count; ++i) {
    const pid_t pid = facts.children.pid_of(i);
    if (pid == 0) continue;
    http::WorkerStatus worker{.rank = facts.lifecycle.seat().first_rank + i,
                              .memory_bytes = resident_bytes(pid)};
    const auto index = static_cast<std::size_t>(i);
    if (index < facts.progress.size() && counts_steps(facts.progress[index])) {
      worker.steps = facts.progress[index].steps;
      worker.samples = facts.steps.of(index, now());
    }
    node.workers.push_back(std::move(worker));
  }
}

http::NodeStatus own_status(const NodeInfo& facts) {
  http::NodeStatus node{.workers_running = facts.lifecycle.live_workers()};
  for (std::size_t i = 0; i < facts.progress.size(); ++i) {
    const WorkerProgress& worker = facts.progress[i];
    if (!counts_steps(worker)) continue;
    node.steps.push_back({facts.lifecycle.seat().first_rank + static_cast<int>(i), worker.steps});
  }
  add_workers(facts, node);
  node.replica_differences = facts.incidents.replica_differences();
  for (const IncidentLog::Stage& stage : facts.incidents.stages())
    node.stages.push_back({stage.name, stage.count, in_seconds(stage.sum), in_seconds(stage.last)});
  if (facts.services != nullptr) {
    const store::Server& store = facts.services->store();
    node.store = {store.keys(), store.stored_bytes(), store.connections()};
  }
  return node;
}

}  // namespace

http::StatusReport node_status(const NodeInfo& facts) {
  const rendezvous::Host* const host = facts.services == nullptr ? nullptr : facts.services->host();
  http::StatusReport report{.program = facts.config.called,
                            .hostname = facts.hostname,
                            .started = facts.started,
                            .now = std::chrono::system_clock::now(),
                            .unhealthy = unhealthy(facts),
                            .is_leader = host != nullptr,
                            .node = own_status(facts)};
  report.jobs.push_back(job_status(facts, host));
  return report;
}

}  // namespace ddprun::agent
