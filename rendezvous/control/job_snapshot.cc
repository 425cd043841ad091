#include "rendezvous/control/job_snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/duration.h"

namespace ddprun::rendezvous {
namespace {

std::string waiting_text(const WaitStatus& wait_status) {
  const std::string here =
      wait_status.min_nodes == wait_status.max_nodes
          ? fmt::format("{} of {} nodes", wait_status.have, wait_status.min_nodes)
          : fmt::format("{} of {} to {} nodes", wait_status.have, wait_status.min_nodes,
                        wait_status.max_nodes);
  const std::string left = fmt::format("{:.0f} s left", in_seconds(wait_status.ends_in));
  switch (wait_status.awaits) {
    case Await::kNodes:
      return fmt::format("{} are here, {}{}", here, left,
                         wait_status.missing.empty() ? "" : "; missing: " + wait_status.missing);
    case Await::kLastCall:
      return fmt::format("{} are here, more may come, {}", here, left);
    case Await::kOldWorkers:
      return fmt::format("workers of the last round still run; {} are back", here);
    case Await::kRestartPause:
      return fmt::format("the pause before a restart, {}", left);
    case Await::kSeat:
    case Await::kResize:
      return {};
  }
  return {};
}

int seconds_left(Time until, Time now) {
  if (until <= now) return 0;
  return static_cast<int>(std::chrono::ceil<std::chrono::seconds>(until - now).count());
}

JobPhase phase_of(const Membership& membership, const JobEventLog& log) {
  switch (membership.phase()) {
    case Membership::Phase::kWaiting:
      return JobPhase::kWaiting;
    case Membership::Phase::kRecovering:  // its workers run on meanwhile
    case Membership::Phase::kRunning:
      return JobPhase::kRunning;
    case Membership::Phase::kEnded:
      return log.succeeded() ? JobPhase::kSucceeded
                             : (log.was_stopped() ? JobPhase::kStopped : JobPhase::kFailed);
  }
  return JobPhase::kWaiting;
}

}  // namespace

std::string_view name_of(JobPhase phase) {
  switch (phase) {
    case JobPhase::kWaiting:
      return "waiting";
    case JobPhase::kRunning:
      return "running";
    case JobPhase::kSucceeded:
      return "succeeded";
    case JobPhase::kFailed:
      return "failed";
    case JobPhase::kStopped:
      return "stopped";
  }
  return "unknown";
}

std::string_view name_of(IncidentKind kind) {
  switch (kind) {
    case IncidentKind::kFailure:
      return "failure";
    case IncidentKind::kResize:
      return "resize";
    case IncidentKind::kEnd:
      return "end";
  }
  return "unknown";
}

void JobEventLog::note(const Verdict& verdict, std::int64_t unix_ms) {
  const std::string before = std::exchange(alarm_, verdict.is_alarm() ? verdict.sentence : "");
  if (alarm_.empty()) return timeline_.went_on(unix_ms);
  if (alarm_ == before) timeline_.stands_still(verdict.sentence, verdict.ranks, unix_ms);
}

void JobEventLog::note(const Outcome& outcome, Time now, std::int64_t unix_ms) {
  note_round(outcome, unix_ms);
  if (outcome.broken) {
    const Failure& cause = outcome.broken->cause;
    add({.unix_ms = unix_ms,
         .round = outcome.broken->round,
         .kind = outcome.broken->is_resize ? IncidentKind::kResize : IncidentKind::kFailure,
         .hostname = cause.hostname,
         .rank = cause.rank,
         .text = cause.message});
    broken_at_ = now;
    is_open_ = true;
  }
  if (outcome.published && std::exchange(is_open_, false))
    incidents_.back().reformed_after_ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(now - broken_at_).count();
  if (!outcome.ended) return;
  is_open_ = false;
  succeeded_ = outcome.ended->succeeded;
  was_stopped_ = outcome.ended->is_stopped;
  const Failure& cause = outcome.ended->cause;
  add({.unix_ms = unix_ms,
       .kind = IncidentKind::kEnd,
       .hostname = cause.hostname,
       .rank = succeeded_ ? -1 : cause.rank,
       .text = succeeded_ ? "the job succeeded" : cause.message});
}

void JobEventLog::note_round(const Outcome& outcome, std::int64_t unix_ms) {
  if (outcome.broken || outcome.ended) timeline_.round_ended(unix_ms);
  if (outcome.published)
    timeline_.round_began(outcome.published->round.number, outcome.published->round.world_size,
                          unix_ms);
  if (outcome.broken || outcome.ended || outcome.published) alarm_.clear();
}

void JobEventLog::add(IncidentStatus incident) {
  incidents_.push_back(std::move(incident));
  if (incidents_.size() > kMaxIncidents) incidents_.pop_front();
}

JobSnapshot status_of(const Membership& membership, const JobEventLog& log, Time now) {
  JobSnapshot status{.phase = phase_of(membership, log),
                     .round = membership.round_number(),
                     .restarts = membership.restart_count(),
                     .max_restarts = membership.restart_rules().max_restarts,
                     .min_nodes = membership.policy().min_nodes,
                     .max_nodes = membership.policy().max_nodes,
                     .end = membership.end_text(),
                     .incidents = {log.incidents().begin(), log.incidents().end()},
                     .periods = log.timeline().periods()};
  if (const auto wait_status = membership.wait_status(now); wait_status && !membership.ended())
    status.waits_for = waiting_text(*wait_status);
  membership.members().for_each([&](const Member& member) {
    // One that was refused, or whose session is about to end, is in no job.
    if (member.state == MemberState::kDismissed || member.gone) return;
    const NodeSpec& spec = member.entrant.spec;
    status.nodes.push_back({.session = member.session(),
                            .id = spec.node_id,
                            .hostname = spec.hostname,
                            .role = spec.role,
                            .node_rank = member.last_seat(),
                            .workers = spec.local_world_size,
                            .state = member.state,
                            .strikes = membership.strikes_of(member, now),
                            .sits_out_s = seconds_left(membership.sits_out_until(member), now)});
  });
  std::ranges::stable_sort(status.nodes, {}, [](const NodeSnapshot& node) {
    return node.node_rank < 0 ? std::numeric_limits<int>::max() : node.node_rank;
  });
  return status;
}

}  // namespace ddprun::rendezvous
