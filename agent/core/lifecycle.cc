#include "agent/core/lifecycle.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <utility>

#include "agent/core/exit_code.h"
#include "base/assert.h"
#include "base/limit_hint.h"
#include "base/signal_name.h"
#include "rendezvous/core/keep_alive.h"

namespace ddprun::agent {
namespace {

void append(Actions& actions, Actions more) {
  for (Action& action : more) actions.push_back(std::move(action));
}

}  // namespace

std::string_view name_of(Phase phase) {
  switch (phase) {
    case Phase::kIdle:
      return "starting";
    case Phase::kJoining:
      return "joining";
    case Phase::kRunning:
      return "running";
    case Phase::kFinished:
      return "finished";
    case Phase::kDraining:
      return "stopping";
    case Phase::kDone:
      return "done";
  }
  return "";
}

Actions Lifecycle::start() {
  DDPRUN_ASSERT(phase_ == Phase::kIdle);
  phase_ = Phase::kJoining;
  return {RequestRound{}};
}

Actions Lifecycle::on_message(const rendezvous::HostMessage& message, Time now) {
  struct Tell {
    Lifecycle& self;
    Time now;
    Actions operator()(const rendezvous::RoundPublished& it) const {
      return self.round_published(it, now);
    }
    Actions operator()(const rendezvous::RoundBroken& it) const {
      return self.round_broken(it, now);
    }
    Actions operator()(const rendezvous::JobEnded& it) const { return self.job_ended(it, now); }
    Actions operator()(const rendezvous::SessionLost& it) const {
      return self.session_lost(it, now);
    }
    Actions operator()(const rendezvous::Drain& it) const { return self.drain_wanted(it, now); }
    // Whether workers stand still is no matter of this machine.
    Actions operator()(const rendezvous::Look& /*it*/) const { return {}; }
    Actions operator()(const rendezvous::StandstillVerdict& /*it*/) const { return {}; }
    Actions operator()(const rendezvous::ReplicaQuestion& /*it*/) const { return {}; }
    Actions operator()(const rendezvous::ReplicaVerdict& /*it*/) const { return {}; }
    Actions operator()(const rendezvous::StragglerVerdict& /*it*/) const { return {}; }
    Actions operator()(const rendezvous::StepOrder& /*it*/) const { return {}; }
  };
  return std::visit(Tell{*this, now}, message);
}

Actions Lifecycle::round_published(const rendezvous::RoundPublished& message, Time now) {
  // The host published the round before it heard that we leave. Its workers must not start.
  if (phase_ != Phase::kJoining) return {};
  round_ = message.round;
  seat_ = message.seat;
  live_ = settings_.worker_count;
  started_ = now;
  ended_.clear();
  workers_started_ = true;
  killed_ = false;
  handled_rank_ = -1;
  pointless_.reset();
  after_drain_ = AfterDrain::kUndecided;
  phase_ = Phase::kRunning;
  return {StartWorkers{}};
}

Actions Lifecycle::round_broken(const rendezvous::RoundBroken& message, Time now) {
  // A late message about an older round: this node has already stopped that round's workers.
  if (message.round != round_.number) return {};
  Actions actions = rejoin(now);
  // The others may start the next round in a moment.
  const bool has_workers = live_ > 0 && !killed_;
  if (message.is_fenced && has_workers) append(actions, kill(now));
  return actions;
}

Actions Lifecycle::rejoin(Time now) {
  switch (phase_) {
    case Phase::kRunning:
    case Phase::kFinished:
      return drain(AfterDrain::kRejoin, SIGTERM, now);
    case Phase::kDraining:
      // Once the job ends here, a restart that was granted meanwhile changes nothing.
      if (after_drain_ != AfterDrain::kUndecided) return {};
      after_drain_ = AfterDrain::kRejoin;
      return live_ == 0 ? drained() : Actions{};
    case Phase::kIdle:
    case Phase::kJoining:
    case Phase::kDone:
      return {};
  }
  return {};
}

// The first reason to end the job counts: a later one is mostly its consequence.
Actions Lifecycle::job_ended(const rendezvous::JobEnded& message, Time now) {
  if (phase_ == Phase::kDone || after_drain_ == AfterDrain::kEnd) return {};
  ending_.succeeded = message.succeeded;
  if (!message.succeeded) ending_.cause = message.cause;
  ending_.stopped = message.is_stopped;
  ending_.no_progress = message.no_progress;
  return drain(AfterDrain::kEnd, SIGTERM, now);
}

Actions Lifecycle::session_lost(const rendezvous::SessionLost& message, Time now) {
  if (phase_ == Phase::kDone) return {};
  Actions actions;
  if (after_drain_ != AfterDrain::kEnd) {
    ending_.session_error = message.error;
    actions = drain(AfterDrain::kEnd, SIGTERM, now);
  }
  if (live_ == 0 || killed_) return actions;
  // The others may start a round in a moment, and two rounds at once must not be.
  if (message.is_fenced) {
    append(actions, kill(now));
  } else if (message.lease_ends != Time{}) {
    // Then they may, and no grace is longer.
    kill_no_later_than(message.lease_ends);
  }
  return actions;
}

// The host has let the others go on already. It waits for our workers, as for those of a node that
// leaves by itself.
Actions Lifecycle::drain_wanted(const rendezvous::Drain& message, Time now) {
  if (phase_ == Phase::kDone) return {};
  if (after_drain_ == AfterDrain::kEnd) {
    if (ending_.drained) drain_sooner(message.deadline, now);
    return {};
  }
  ending_.drained = true;
  Actions actions = {LeaveJob{
      {.hostname = settings_.hostname, .message = "an operator drained " + settings_.hostname}}};
  append(actions, drain(AfterDrain::kEnd, SIGTERM, now));
  if (live_ == 0 || killed_) return actions;
  if (message.deadline.count() > 0) {
    kill_at_ = Time::max();
    kill_no_later_than(now + message.deadline);
  }
  return actions;
}

// An operator who has lost patience says it again. A later deadline changes nothing: the others
// wait.
void Lifecycle::drain_sooner(std::chrono::milliseconds deadline, Time now) {
  if (live_ == 0 || killed_ || deadline.count() == 0) return;
  kill_no_later_than(now + deadline);
}

// Others wait until then, or go on. So a suspension does not move it.
void Lifecycle::kill_no_later_than(Time end) {
  kill_at_latest_ = std::min(kill_at_latest_, end);
  kill_at_ = std::min(kill_at_, kill_at_latest_);
  look_at_ = std::min(look_at_, kill_at_);
}

// `has_grace`: the workers were asked to end before, for another reason.
void Lifecycle::kill_at_end_of_notice(Time end, bool has_grace) {
  if (live_ == 0 || killed_ || end == Time::max()) return;
  if (!has_grace) kill_at_ = Time::max();
  kill_no_later_than(end);
}

// Only the first failure of a round is reported. The rendezvous breaks the round at once, and the
// deaths that follow are the consequence.
Actions Lifecycle::workers_exited(const std::vector<WorkerExit>& at_once, Time now) {
  const bool draining = phase_ == Phase::kDraining;
  DDPRUN_ASSERT(draining || phase_ == Phase::kRunning);
  const WorkerExit* first_failure = nullptr;
  for (const WorkerExit& exit : at_once) {
    DDPRUN_ASSERT(live_ > 0);
    --live_;
    const bool was_first = exit.local_rank == handled_rank_;
    ended_.push_back({exit, started_, now, draining && !was_first && stopped_by_us(exit)});
    const bool is_reason =
        first_failure == nullptr || (ends_job(exit) && !ends_job(*first_failure));
    const bool counts = draining ? ends_job(exit) && !was_first : exit.failed();
    if (counts && is_reason) first_failure = &exit;
  }
  if (draining) return exited_while_draining(first_failure);
  if (first_failure != nullptr) return worker_failed(*first_failure, now);
  if (live_ > 0) return {};
  // Workers of other nodes may still fail, and then ours start again. So the job has not ended yet.
  phase_ = Phase::kFinished;
  return {ReportSuccess{}};
}

// The host may hear of another failure first, and grant a restart. `ending`: a worker whose exit
// code ends the job; none: nullptr.
Actions Lifecycle::exited_while_draining(const WorkerExit* ending) {
  Actions actions;
  if (ending != nullptr && after_drain_ != AfterDrain::kEnd)
    actions.push_back(ReportFailure{describe(*ending)});
  if (live_ == 0) append(actions, drained());
  return actions;
}

Actions Lifecycle::worker_is_ending(const WorkerExit& exit, Time now) {
  if (phase_ != Phase::kRunning || !exit.failed()) return {};
  handled_rank_ = exit.local_rank;
  return worker_failed(exit, now);
}

Actions Lifecycle::worker_failed(const WorkerExit& exit, Time now) {
  if (pointless_ && !exit.wants_restart) {
    ending_.cause = describe(exit);
    if (!pointless_->empty()) ending_.cause->words = *pointless_;
    Actions actions = {LeaveJob{*ending_.cause}};
    append(actions, drain(AfterDrain::kEnd, SIGTERM, now));
    return actions;
  }
  Actions actions = {ReportFailure{describe(exit)}};
  append(actions, drain(AfterDrain::kUndecided, SIGTERM, now));
  return actions;
}

bool Lifecycle::ends_job(const WorkerExit& exit) const {
  return exit.has_run() && std::ranges::find(settings_.exits.ends_job, exit.exit_code) !=
                               settings_.exits.ends_job.end();
}

bool Lifecycle::excludes_node(const WorkerExit& exit) const {
  const std::vector<int>& codes = settings_.exits.excludes_node;
  return exit.has_run() && std::ranges::find(codes, exit.exit_code) != codes.end();
}

// Called for workers that end after the request to end. An exit code may be the answer to the
// request. A signal is the answer only if we sent it: a worker that dies of SIGSEGV meanwhile
// failed by itself.
bool Lifecycle::stopped_by_us(const WorkerExit& exit) const {
  if (!exit.has_run()) return false;
  if (exit.exit_code >= 0) return true;
  // The drain may have begun with SIGTERM, and the user's signal came later: each of them is ours.
  const int signo = -exit.exit_code;
  return signo == closing_signal_ || signo == ending_.signal || (signo == SIGKILL && killed_);
}

Actions Lifecycle::stop_requested(int signo, Time now, Time end) {
  if (phase_ == Phase::kDone) return {};
  if (ending_.signal != 0 && std::exchange(waits_for_step_, false)) {
    closing_signal_ = signo;
    return live_ > 0 ? Actions{SignalWorkers{signo}} : Actions{};
  }
  if (ending_.signal != 0) {  // a second request: the user does not want to wait for the grace
    // A third request changes nothing: the limit of the kill must not begin anew.
    return live_ > 0 && !killed_ ? kill(now) : Actions{};
  }
  ending_.signal = signo;
  // The job already ends for another reason. The workers still get the user's signal, but the grace
  // does not begin anew.
  if (after_drain_ == AfterDrain::kEnd) {
    closing_signal_ = signo;
    return live_ > 0 ? Actions{SignalWorkers{signo}} : Actions{};
  }
  // The host should hear it before another node's worker fails for want of ours. That would be a
  // failure, and spend a restart. By the exit code the others know that we were told to end, and
  // did not fail.
  Actions actions = {LeaveJob{{.hostname = settings_.hostname,
                               .exit_code = -signo,
                               .message = fmt::format("the launcher on {} received {}",
                                                      settings_.hostname, signal_name(signo))}}};
  if (end != Time::max() && live_ > 0) ending_.noticed = settings_.hostname;
  const bool has_grace = phase_ == Phase::kDraining;
  append(actions, drain(AfterDrain::kEnd, signo, now));
  kill_at_end_of_notice(end, has_grace);
  return actions;
}

// As stop_requested(): the others hear of it before a worker of theirs fails for want of ours.
Actions Lifecycle::leave_after_step(const rendezvous::StepOrder& order, Time now) {
  if (phase_ == Phase::kDone || after_drain_ == AfterDrain::kEnd) return {};
  ending_.signal = order.signo;
  ending_.noticed = order.hostname;
  Actions actions = {LeaveJob{{.hostname = settings_.hostname,
                               .exit_code = -order.signo,
                               .message = fmt::format("{} was given notice by {}", order.hostname,
                                                      signal_name(order.signo))}}};
  waits_for_step_ = phase_ != Phase::kDraining;
  const Actions rest = drain(AfterDrain::kEnd, order.signo, now);
  if (live_ == 0) append(actions, rest);
  if (waits_for_step_ && live_ > 0) look_at_ = Time::max();
  kill_at_end_of_notice(now + order.deadline, !waits_for_step_);
  return actions;
}

Actions Lifecycle::give_up(const rendezvous::Failure& reason, Time now) {
  if (phase_ == Phase::kDone || after_drain_ == AfterDrain::kEnd) return {};
  ending_.cause = reason;
  ending_.launcher_failed = true;
  Actions actions = {LeaveJob{reason}};
  append(actions, drain(AfterDrain::kEnd, SIGTERM, now));
  return actions;
}

// Returns the end of the limit that we look at. `due`: when that look should have been. Nobody here
// ran since then if we come late, and the workers perhaps neither. They get as much time again.
Time Lifecycle::end_of_limit(Time due, Time now) const {
  const Time end = killed_ ? due : kill_at_;
  const std::chrono::nanoseconds late = now - due;
  if (late < rendezvous::kSuspendedFor) return end;
  if (killed_) return std::max(end, now + std::min(late, settings_.kill_limit));
  return std::min(std::max(end, now + std::min(late, settings_.grace)), kill_at_latest_);
}

Actions Lifecycle::time_passed(Time now) {
  if (now < look_at_) return {};
  const Time due = std::exchange(look_at_, Time::max());
  if (live_ == 0) return {};
  // Within the grace we wake up once, at the end of `shell_patience`.
  const bool is_for_shells = !killed_ && due < kill_at_;
  const Time end = end_of_limit(due, now);
  if (!killed_) kill_at_ = end;
  if (now < end) {
    look_at_ = end;
    return is_for_shells ? Actions{SignalShells{closing_signal_}} : Actions{};
  }
  if (!killed_) return kill(now);
  // SIGKILL did not end them within the limit. They may still hold a GPU, and a new attempt beside
  // them would fail or hang. So the job ends, also if a restart was granted.
  const rendezvous::Failure stuck = {
      .hostname = settings_.hostname,
      .message = fmt::format("{} of {} workers on {} did not end after SIGKILL", live_,
                             settings_.worker_count, settings_.hostname),
      .fault = rendezvous::NodeFault::kInKernel};
  if (!ending_.cause) ending_.cause = stuck;
  ending_.succeeded = false;
  ending_.drained = false;
  phase_ = Phase::kDone;
  return {LeaveJob{stuck}, finish()};
}

Actions Lifecycle::kill(Time now) {
  killed_ = true;
  look_at_ = now + settings_.kill_limit;
  return {KillWorkers{}};
}

// Stops the workers that still run. Call it in any phase but kDone. If a drain is already under
// way, only `after_drain` changes. The workers got their request, and the grace must not grow.
Actions Lifecycle::drain(AfterDrain after_drain, int signo, Time now) {
  const bool already = phase_ == Phase::kDraining;
  phase_ = Phase::kDraining;
  after_drain_ = after_drain;
  if (live_ == 0) return after_drain == AfterDrain::kUndecided ? Actions{} : drained();
  if (already) return {};
  kill_at_ = now + settings_.grace;
  kill_at_latest_ = Time::max();
  look_at_ = std::min(kill_at_, now + settings_.shell_patience);
  closing_signal_ = signo;
  return {SignalWorkers{signo}};
}

// No worker is left. Goes on as `after_drain_` says; if that is not decided yet, the rendezvous'
// answer calls this again.
Actions Lifecycle::drained() {
  look_at_ = Time::max();
  switch (after_drain_) {
    case AfterDrain::kUndecided:
      return {};
    case AfterDrain::kRejoin:
      phase_ = Phase::kJoining;
      after_drain_ = AfterDrain::kUndecided;
      // The job may end while we join. Then the report must not blame workers of an attempt that
      // was followed by a restart.
      ended_.clear();
      return {RequestRound{}};
    case AfterDrain::kEnd:
      phase_ = Phase::kDone;
      return {finish()};
  }
  return {};
}

Finish Lifecycle::finish() const {
  if (const auto code = mapped_code(settings_.exits.map, ending_, settings_.max_restarts))
    return {*code};
  return {exit_code_of(ending_, {.detailed = settings_.detailed_exit_codes,
                                 .workers_started = workers_started_,
                                 .preempted = settings_.exit_preempted,
                                 .max_restarts = settings_.max_restarts})};
}

rendezvous::Failure Lifecycle::describe(const WorkerExit& exit) const {
  const int rank = seat_.first_rank + exit.local_rank;
  std::string how;
  if (!exit.start_error.empty()) {
    how = "could not be started: " + exit.start_error;
  } else if (exit.exec_errno != 0) {
    how = fmt::format("could not be started: {}", describe_errno(exit.exec_errno));
  } else if (!exit.ended_for.empty()) {
    how = exit.ended_for;
  } else if (exit.exit_code < 0) {
    how = fmt::format("was killed by {}", signal_name(-exit.exit_code));
  } else {
    how = fmt::format("exited with code {}", exit.exit_code);
  }
  return {.hostname = settings_.hostname,
          .rank = rank,
          .local_rank = exit.local_rank,
          .exit_code = exit.exit_code,
          .message = fmt::format("rank {} (local rank {}{}) on {} {}", rank, exit.local_rank,
                                 exit.pid > 0 ? fmt::format(", pid {}", exit.pid) : "",
                                 settings_.hostname, how),
          .words = exit.has_run() ? std::string() : how,
          .is_hang = exit.ended_for.starts_with(kEndedForHang),
          .ends_job = ends_job(exit),
          .fault = excludes_node(exit) ? rendezvous::NodeFault::kExitCode
                                       : rendezvous::NodeFault::kNone};
}

std::vector<int> Lifecycle::own_ranks(bool that_run) const {
  std::vector<int> ranks;
  for (int local_rank = 0; local_rank < settings_.worker_count; ++local_rank) {
    const bool runs = std::none_of(
        ended_.begin(), ended_.end(),
        [local_rank](const EndedWorker& one) { return one.exit.local_rank == local_rank; });
    if (runs == that_run) ranks.push_back(seat_.first_rank + local_rank);
  }
  return ranks;
}

bool Lifecycle::has_ended_well(int local_rank) const {
  return std::ranges::any_of(ended_, [local_rank](const EndedWorker& one) {
    return one.exit.local_rank == local_rank && !one.exit.failed();
  });
}

bool Lifecycle::is_own_rank(int rank) const {
  return had_round() && rank >= seat_.first_rank &&
         rank < seat_.first_rank + settings_.worker_count;
}

}  // namespace ddprun::agent
