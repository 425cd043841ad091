#include "agent/node_operators.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace ddprun::agent {
namespace {

using rendezvous::ControlOutcome;
using rendezvous::JobPhase;
using rendezvous::JobSnapshot;
using rendezvous::MemberState;

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
