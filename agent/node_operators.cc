#include "agent/node_operators.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "agent/processes/process.h"

namespace ddprun::agent {
namespace {

using rendezvous::ControlOutcome;
using rendezvous::JobPhase;
using rendezvous::JobSnapshot;
using rendezvous::MemberState;
using rendezvous::RankProgress;

struct PhaseNames {
  JobPhase job;
  MemberState node;
};

PhaseNames names_of(Phase phase) {
  switch (phase) {
    case Phase::kIdle:
    case Phase::kJoining:
      return {JobPhase::kWaiting, MemberState::kWaiting};
    case Phase::kRunning:
      return {JobPhase::kRunning, MemberState::kRunning};
    case Phase::kFinished:
      return {JobPhase::kRunning, MemberState::kSucceeded};
    case Phase::kDraining:
    case Phase::kDone:
      return {JobPhase::kRunning, MemberState::kStopping};
  }
  return {JobPhase::kRunning, MemberState::kRunning};
}

// A node that does not host the rendezvous knows itself alone.
JobSnapshot known_here(const NodeOperators::Sources& sources) {
  const Lifecycle& lifecycle = sources.lifecycle;
  const RendezvousPlan& plan = sources.config.rendezvous;
  const PhaseNames names = names_of(lifecycle.phase());
  JobSnapshot job{.job = plan.run_id,
                  .phase = names.job,
                  .round = lifecycle.round().number,
                  .restarts = lifecycle.round().restart_count,
                  .max_restarts = sources.config.restarts.max_restarts,
                  .min_nodes = plan.min_nodes,
                  .max_nodes = plan.max_nodes};
  if (names.job == JobPhase::kWaiting) job.waits_for = "this node waits for the next round";
  job.nodes.push_back({.hostname = sources.hostname,
                       .role = sources.config.role,
                       .node_rank = lifecycle.had_round() ? lifecycle.seat().node_rank : -1,
                       .workers = sources.config.worker_count,
                       .state = names.node});
  return job;
}

RankProgress progress_of(const WorkerPage& page, pid_t pid) {
  const std::uint64_t steps = page.steps;
  RankProgress progress{};
  // A program that tells nothing of itself has no steps, and not zero of them.
  if (page.first_line != 0 || steps > 0) progress.steps = static_cast<std::int64_t>(steps);
  if (page.last_step != 0)
    progress.quiet_ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(now() - time_of_page(page.last_step))
            .count();
  if (const auto bytes = resident_bytes(pid))
    progress.memory_bytes = static_cast<std::int64_t>(*bytes);
  return progress;
}

// The workers that live.
std::vector<RankProgress> progress_here(const NodeOperators::Sources& sources) {
  std::vector<RankProgress> ranks;
  const WorkerPages* const pages = sources.workers.pages();
  for (int i = 0; pages != nullptr && i < sources.config.worker_count; ++i) {
    const pid_t pid = sources.children.pid_of(i);
    if (pid == 0) continue;
    ranks.push_back(progress_of(pages->page(i), pid));
    ranks.back().rank = sources.lifecycle.seat().first_rank + i;
    ranks.back().spread = sources.spread(i);
  }
  return ranks;
}

}  // namespace

NodeOperators::NodeOperators(asio::io_context& loop, Sources sources)
    : sources_(std::move(sources)),
      pid_(::getppid()),
      stacks_(loop, sources_.children, sources_.workers),
      socket_(loop, pid_,
              [this](const rendezvous::ControlQuestion& question,
                     rendezvous::NodeSocket::Reply reply) { answer(question, std::move(reply)); }) {
}

JobSnapshot NodeOperators::job() const {
  const rendezvous::JobControl* const control =
      sources_.services == nullptr ? nullptr : sources_.services->control();
  JobSnapshot job = control == nullptr ? known_here(sources_) : control->status();
  job.pid = pid_;
  job.log_folder = sources_.log_folder;
  job.ranks = progress_here(sources_);
  // The agent hears how its own workers went on; a host does not.
  job.periods = sources_.timeline.periods();
  return job;
}

void NodeOperators::answer(const rendezvous::ControlQuestion& question,
                           rendezvous::NodeSocket::Reply reply) {
  if (std::holds_alternative<rendezvous::ShowJobs>(question.verb)) return reply({.jobs = {job()}});
  if (const auto* wanted = std::get_if<rendezvous::ShowStacks>(&question.verb))
    return show_stacks(*wanted, std::move(reply));
  reply({ControlOutcome::kRefused, "a node only shows its job: ask the rendezvous (--endpoint)"});
}

void NodeOperators::show_stacks(const rendezvous::ShowStacks& wanted,
                                rendezvous::NodeSocket::Reply reply) {
  const Lifecycle& lifecycle = sources_.lifecycle;
  if (lifecycle.live_workers() == 0)
    return reply({ControlOutcome::kRefused, fmt::format("no worker runs on this node, which is {}",
                                                        name_of(lifecycle.phase()))});
  const int first = lifecycle.seat().first_rank;
  const int workers = sources_.config.worker_count;
  for (const int rank : wanted.ranks) {
    if (rank < first || rank >= first + workers)
      return reply({ControlOutcome::kUnknown,
                    fmt::format("rank {} is not on this node, which has {} to {} of {}", rank,
                                first, first + workers - 1, lifecycle.round().world_size)});
  }
  std::vector<int> ranks = wanted.ranks;
  std::ranges::sort(ranks);
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  stacks_.take({workers, first}, std::move(ranks),
               [this, reply = std::move(reply)](std::vector<rendezvous::RankStack> stacks) {
                 reply({.jobs = {job()}, .stacks = std::move(stacks)});
               });
}

}  // namespace ddprun::agent
