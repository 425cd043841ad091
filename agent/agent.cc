#include "agent/agent.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <functional>
#include <utility>

#include "agent/core/exit_code.h"
#include "agent/core/worker_variables.h"
#include "agent/network/addresses.h"
#include "agent/processes/descendants.h"
#include "agent/processes/process.h"
#include "proto/log.h"
#include "store/descriptors.h"

namespace ddprun::agent {
namespace {

// Blocks the loop, so it must end well before the rendezvous takes our silence for death
// (rendezvous/service.h).
constexpr std::chrono::milliseconds kSweepBetweenRounds{1000};
static_assert(kSweepBetweenRounds < rendezvous::kBeatEvery * (rendezvous::kSilenceTicks - 1));

}  // namespace

Agent::Agent(asio::io_context& loop, AgentConfig config, const AgentStart& start)
    : loop_(loop),
      config_(std::move(config)),
      hostname_(host_name()),
      node_id_(fmt::format("{}-{}-{}", hostname_, ::getpid(), config_.job_cookie)),
      lifecycle_({.grace = config_.grace,
                  .worker_count = config_.worker_count,
                  .max_restarts = config_.restarts.max_restarts,
                  .detailed_exit_codes = config_.detailed_exit_codes,
                  .hostname = hostname_}),
      children_(start.ignored_signals),
      files_(config_, logs_, pipes_, consoles_, hostname_),
      consoles_(loop, STDOUT_FILENO, STDERR_FILENO),
      pipes_(loop),
      autopsy_(config_, files_),
      containment_(config_.job_cookie),
      child_signal_(loop, SIGCHLD),
      user_signals_(loop),
      guardian_pipe_(loop, start.closed_when_guardian_dies),
      temporary_folder_(start.temporary_folder),
      timer_(loop),
      waiting_timer_(loop),
      notices_(config_.quiet, ::isatty(STDERR_FILENO) == 1),
      started_(now()) {
  consoles_.take_log();
  children_.give_workers(store::raise_descriptor_limit());
  watch_signals(start.ignored_signals);
}

// What was ignored when ddprun was started (nohup) stays so.
void Agent::watch_signals(const std::vector<int>& ignored) {
  for (const int signo : handled_signals(config_.signals)) {
    boost::system::error_code not_ours;  // SIGKILL and SIGSTOP are nobody's to handle
    const bool stays_ignored = std::find(ignored.begin(), ignored.end(), signo) != ignored.end();
    if (!stays_ignored) user_signals_.add(signo, not_ours);
  }
}

int Agent::run() {
  wait_for_child();
  wait_for_signal();
  wait_for_guardian();
  unblock_signals(handled_signals(config_.signals));
  spawn(loop_, "agent start", start());
  loop_.run();
  return exit_code_;
}

// Everything that can be refused before the rendezvous is asked.
Result<void> Agent::prepare() {
  if (auto checked = autopsy_.check(); !checked) return checked.error();
  auto logs = LogTree::make(config_.log_dir, config_.rendezvous.run_id);
  if (!logs) return logs.error();
  logs_ = std::move(*logs);
  const std::string& temporary = logs_.temporary_root();
  if (temporary_folder_ != nullptr && temporary.size() < kNoteBytes)
    std::memcpy(temporary_folder_, temporary.c_str(), temporary.size() + 1);
  return monitors_.begin(loop_, config_.watch,
                         {.workers = [this] { return children_.pids(); },
                          .stuck = [this](pid_t pid) { give_up_on(pid); },
                          .state = [this] { return health_line(lifecycle_); }});
}

asio::awaitable<void> Agent::start() {
  if (const auto prepared = prepare(); !prepared) {
    perform(
        lifecycle_.give_up({.hostname = hostname_, .message = prepared.error().message()}, now()));
    co_return;
  }
  services_ = std::make_unique<NodeServices>(loop_, config_.rendezvous);
  const auto opened =
      co_await services_->open([this](const rendezvous::HostMessage& message) { handle(message); });
  if (lifecycle_.phase() == Phase::kDone) co_return;  // a signal was faster
  if (!opened) {
    // A host that is not known is the rendezvous' failure; a port that cannot be had is ours.
    const Error& why = opened.error();
    perform(why.code() == ErrorCode::kNotFound
                ? lifecycle_.session_lost({why}, now())
                : lifecycle_.give_up({.hostname = hostname_, .message = why.message()}, now()));
    co_return;
  }
  perform(lifecycle_.start());
}

// ---- what happens ----

void Agent::wait_for_child() {
  child_signal_.async_wait([this](boost::system::error_code cancelled, int) {
    if (cancelled) return;
    wait_for_child();  // first: a child that dies while we reap raises the next one
    reap();
  });
}

void Agent::wait_for_signal() {
  user_signals_.async_wait([this](boost::system::error_code cancelled, int signo) {
    if (cancelled) return;
    wait_for_signal();
    handle_signal(signo);
  });
}

// Nobody ever writes to this pipe: readable means that its other end is closed.
void Agent::wait_for_guardian() {
  guardian_pipe_.async_wait(asio::posix::stream_descriptor::wait_read,
                            [this](boost::system::error_code cancelled) {
                              if (!cancelled) die_without_guardian();
                            });
}

void Agent::handle_signal(int received) {
  const SignalMeaning meaning = meaning_of(config_.signals, received);
  if (meaning.is_message) {
    children_.signal_leaders(meaning.signo);
  } else if (lifecycle_.phase() == Phase::kDone) {
    consoles_.stop_waiting();
  } else {
    perform(lifecycle_.stop_requested(meaning.signo, now()));
  }
}

void Agent::handle(const rendezvous::HostMessage& message) {
  if (lifecycle_.phase() == Phase::kDone) return;
  const auto* broken = std::get_if<rendezvous::RoundBroken>(&message);
  if (broken != nullptr && broken->round == lifecycle_.round().number) tell_restart(broken->cause);
  perform(lifecycle_.told(message, now()));
}

void Agent::reap() {
  if (lifecycle_.phase() == Phase::kDone) return;  // who is left now is the sweep's
  const std::vector<WorkerExit> exits = children_.reap();
  for (const WorkerExit& exit : exits) {
    if (exit.failed()) {
      log::info(fmt::format("failed (exitcode: {}) local_rank: {} (pid: {}) of binary: {}",
                            exit.exit_code, exit.local_rank, exit.pid, config_.entry));
    }
    monitors_.forget(exit.pid);
    tell(exit.failed() ? EventState::kFailed : EventState::kSucceeded, exit);
  }
  if (!exits.empty()) perform(lifecycle_.workers_exited(exits, now()));
}

// A worker that no signal ends.
void Agent::give_up_on(pid_t pid) {
  const int local_rank = children_.local_rank(pid);
  const std::string why = fmt::format(
      "rank {} (local rank {}, pid {}) on {} has been in uninterruptible sleep for {} s, in the "
      "kernel's {}; it may hold a device, so the job is not restarted",
      lifecycle_.own_seat().first_rank + local_rank, local_rank, pid, hostname_,
      std::chrono::duration<double>(config_.watch.most_sleep).count(), wait_channel(pid));
  perform(lifecycle_.give_up({.hostname = hostname_, .message = why}, now()));
}

// The guardian was killed: nothing may survive us, and nobody waits for a report.
void Agent::die_without_guardian() {
  children_.signal_groups(SIGKILL);
  containment_.end_attempt(kSweepLimit);
  monitors_.end();
  logs_.clean_up(true);
  exit_code_ = kExitSignalBase + SIGKILL;
  loop_.stop();
}

// ---- what to do about it ----

void Agent::perform(const Actions& actions) {
  for (const Action& action : actions) {
    std::visit([this](const auto& one) { perform(one); }, action);
  }
  set_timer();
}

void Agent::perform(const JoinRound& /*action*/) {
  sweep(kSweepBetweenRounds);
  const auto store = services_->prepare_store();
  if (!store) {
    perform(lifecycle_.give_up({.hostname = hostname_, .message = store.error().message()}, now()));
    return;
  }
  tell(EventState::kRendezvous);
  joining_since_ = now();
  show_waiting();
  services_->session().join({.node_id = node_id_,
                             .hostname = hostname_,
                             .local_world_size = config_.worker_count,
                             .role = config_.role,
                             .node_rank = config_.rendezvous.kind == RendezvousPlan::Kind::kStatic
                                              ? config_.rendezvous.node_rank
                                              : -1,
                             .store_address = store->host,
                             .store_port = store->port,
                             .max_restarts = config_.restarts.max_restarts,
                             .restart_window = config_.restarts.window,
                             .backoff = config_.restarts.backoff,
                             .backoff_max = config_.restarts.backoff_max});
}

void Agent::perform(const StartWorkers& /*action*/) {
  waiting_timer_.cancel();
  say(notices_.waited() + notices_.started(lifecycle_.round(), logs_.job_folder()));
  tell(EventState::kAssignRanks);
  if (lifecycle_.seat() == 0) services_->serve_store();
  tell(EventState::kStart);
  autopsy_.attempt_started();
  children_.use_cgroup(containment_.begin_attempt());
  for (int local_rank = 0; local_rank < config_.worker_count; ++local_rank)
    start_worker(local_rank);
}

// A worker that cannot even be forked counts as one that ended: the lifecycle stops its siblings
// and asks for a restart.
void Agent::start_worker(int local_rank) {
  const auto spec = spawn_spec(local_rank);
  const auto pid = spec ? children_.spawn(*spec) : Result<pid_t>(spec.error());
  if (pid) return;
  log::error(pid.error().message());
  asio::post(loop_, [this, local_rank, why = pid.error().message()] {
    perform(lifecycle_.worker_exited({.local_rank = local_rank, .exit_code = 1, .start_error = why},
                                     now()));
  });
}

Result<SpawnSpec> Agent::spawn_spec(int local_rank) {
  auto files = files_.open({.attempt = lifecycle_.round().restart_count,
                            .local_rank = local_rank,
                            .rank = lifecycle_.own_seat().first_rank + local_rank});
  if (!files) return files.error();
  const WorkerProgram program = config_.command(local_rank);
  SpawnSpec spec{.local_rank = local_rank,
                 .file = program.file,
                 .argv = program.argv,
                 .env = worker_variables(config_, lifecycle_.round(), local_rank,
                                         {.seat = lifecycle_.seat(),
                                          .error_file = files->error_file,
                                          .interface = services_->interface_towards_peers(),
                                          .timer_file = monitors_.timer_file()})};
  spec.out = std::move(files->out);
  spec.err = std::move(files->err);
  return spec;
}

void Agent::perform(const SignalWorkers& action) { children_.ask_to_end(action.signo); }

void Agent::perform(const SignalShells& action) { children_.ask_shells_again(action.signo); }

void Agent::perform(const KillWorkers& /*action*/) {
  children_.signal_groups(SIGKILL);
  asio::post(loop_, [this] { reap(); });  // workers that were dead already, kept for their groups
}

void Agent::perform(const ReportFailure& action) {
  services_->session().report_failure(lifecycle_.round().number, action.failure);
}

void Agent::perform(const ReportSuccess& /*action*/) {
  services_->session().report_success(lifecycle_.round().number);
}

void Agent::perform(const LeaveJob& action) {
  if (services_ != nullptr && services_->is_open()) services_->session().leave(action.reason);
}

void Agent::perform(const Finish& action) {
  waiting_timer_.cancel();
  say(notices_.waited());
  sweep(kSweepLimit);
  exit_code_ = action.exit_code;
  tell(lifecycle_.ending().succeeded ? EventState::kSucceeded : EventState::kFailed);
  tell_ending(action.exit_code);
  spawn(loop_, "agent end", end());
}

// A reader that takes its time is waited for, and signals are heard meanwhile. Nothing that has a
// timer is destroyed before the loop stops: one that has expired is called all the same.
asio::awaitable<void> Agent::end() {
  co_await consoles_.flush();
  const bool asked_for_files = std::any_of(config_.streams.begin(), config_.streams.end(),
                                           std::mem_fn(&StreamPlan::has_files));
  logs_.clean_up(asked_for_files || exit_code_ != 0);
  monitors_.end();
  loop_.stop();
}

// Nothing of the attempt that ended may reach the next one, or stay when there is none.
void Agent::sweep(std::chrono::milliseconds limit) {
  containment_.end_attempt(limit);
  pipes_.drain();
}

void Agent::set_timer() {
  const Time wanted = lifecycle_.look_again_at();
  if (wanted == timer_at_) return;
  timer_at_ = wanted;
  if (wanted == Time::max()) {
    timer_.cancel();
    return;
  }
  timer_.expires_at(wanted);
  timer_.async_wait([this](boost::system::error_code cancelled) {
    if (cancelled) return;
    timer_at_ = Time::max();
    perform(lifecycle_.time_passed(now()));
  });
}

int run_agent(AgentConfig config, const AgentStart& start) {
  ::signal(SIGPIPE,
           SIG_IGN);  // a console nobody reads must not end the job; workers get the default back
  ::signal(SIGXFSZ, SIG_IGN);  // nor must a log file that may not grow (ulimit -f)
  // Never destroyed: that would wait for a name look-up still under way, and this process ends with
  // the agent anyway.
  auto* loop = new asio::io_context(1);
  Agent agent(*loop, std::move(config), start);
  return agent.run();
}

}  // namespace ddprun::agent
