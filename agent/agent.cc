#include "agent/agent.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "agent/core/exit_code.h"
#include "agent/core/lifecycle.h"
#include "agent/core/node_fault.h"
#include "agent/guardian/shared_lease.h"
#include "agent/monitors/attempt_progress.h"
#include "agent/monitors/monitors.h"
#include "agent/monitors/record_watch.h"
#include "agent/monitors/status_port.h"
#include "agent/network/node_services.h"
#include "agent/network/node_spec.h"
#include "agent/network/store_probe.h"
#include "agent/node_operators.h"
#include "agent/preemption/notice_look.h"
#include "agent/preemption/preemption_watch.h"
#include "agent/processes/descendants.h"
#include "agent/processes/process.h"
#include "agent/replicas/replica_watch.h"
#include "agent/report/events.h"
#include "agent/report/reporter.h"
#include "agent/report/strike_file.h"
#include "agent/signals_and_exits.h"
#include "agent/standstill/process_look.h"
#include "agent/standstill/standstills.h"
#include "agent/stragglers/straggler_watch.h"
#include "agent/worker_group/device_gate.h"
#include "agent/worker_group/worker_group.h"
#include "base/alarm.h"
#include "base/duration.h"
#include "base/environment.h"
#include "base/limit_hint.h"
#include "base/log.h"
#include "base/net/addresses.h"

namespace ddprun::agent {
namespace {

// The longest that the sweep between two rounds may block the loop. A blocked loop sends no
// heartbeats, and the lease of a node that sends none ends.
constexpr std::chrono::milliseconds kSweepBetweenRounds{400};
// And of it, what a process has that a worker left behind.
constexpr std::chrono::milliseconds kGraceBetweenRounds{500};
static_assert(kSweepBetweenRounds + kEndsAlone + kGraceBetweenRounds + kLeaveLimit <
              rendezvous::lease_for({}, 1).length / 2);
constexpr const char* kEndedByGuardian =
    "was killed, because the agent (ddp-agent) was stopped for longer than its lease; "
    "--rdzv-conf=keep_alive_interval=N makes that longer";

class Agent {
 public:
  Agent(asio::io_context& loop, AgentConfig config, const AgentStart& start);
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;
  ~Agent() = default;

  // Returns ddprun's exit code. `temporary_folder`: as in AgentStart.
  int run(char* temporary_folder);

 private:
  asio::awaitable<void> begin(char* temporary_folder);
  Result<void> prepare(char* temporary_folder);
  asio::awaitable<void> end();

  void children_died();
  void worker_is_dying(int local_rank, Time noticed);
  void stop_requested(int signo, Time end = Time::max());
  void notice_came(int signo);
  void step_is_agreed(const rendezvous::StepOrder& order);
  void signal_for_step(int local_rank, const rendezvous::StepOrder& order);
  std::vector<int> running_local_ranks() const;
  void on_message(const rendezvous::HostMessage& message);
  void worker_is_stuck(pid_t pid);
  void teardown_is_overdue(int local_rank);
  std::chrono::milliseconds cpu_of_workers();
  void guardian_died();
  void job_stands_still(const rendezvous::Verdict& verdict);
  void end_hung_worker(const rendezvous::Verdict& verdict);
  void replicas_differ(const rendezvous::ReplicaVerdict& verdict);
  bool compares_replicas() const;
  bool notices_come() const {
    return !config_.signals.notice.empty() || !config_.notice_file.empty();
  }

  void perform(const Actions& actions);
  void perform(const RequestRound& action);
  void perform(const StartWorkers& action);
  void perform(const SignalWorkers& action);
  void perform(const SignalShells& action);
  void perform(const KillWorkers& action);
  void perform(const ReportFailure& action);
  void perform(const ReportSuccess& action);
  void perform(const LeaveJob& action);
  void perform(const Finish& action);

  void start_workers();
  void start_worker(int local_rank);
  bool forget_start(int signo);
  void look_for_a_pointless_restart();
  void give_up(const std::string& why, rendezvous::NodeFault fault = rendezvous::NodeFault::kNone);
  void keep_strikes(const rendezvous::HostMessage& message);
  rendezvous::NodeFault fault_of(const rendezvous::Failure& failure) const;

  asio::io_context& loop_;
  const AgentConfig config_;
  const std::string hostname_;
  Lifecycle lifecycle_;
  Consoles consoles_;
  WorkerGroup workers_;
  Reporter reporter_;
  SignalsAndExits events_;
  Alarm alarm_;
  Monitors monitors_;
  RecordWatch records_;
  AttemptProgress progress_;
  DeviceGate devices_;
  SharedLease lease_;
  Standstills standstills_;
  ReplicaWatch replicas_;
  StragglerWatch stragglers_;
  PreemptionWatch preemption_;
  NoticeLook notice_look_;
  std::chrono::seconds straggler_window_{0};  // 0: nobody looks for them
  StrikeFile strikes_;
  bool hangs_in_kernel_ = false;  // the worker that was ended last, because it stood still
  Time first_sign_{};             // of the failure that is being told
  bool is_starting_ = false;      // StartWorkers is being performed: imports go on
  int exit_code_ = 1;
  std::unique_ptr<NodeServices> services_;    // it calls on_message(), which needs all of the above
  std::unique_ptr<StatusPort> status_port_;   // it looks at all of the above
  std::unique_ptr<NodeOperators> operators_;  // it, too
};

Agent::Agent(asio::io_context& loop, AgentConfig config, const AgentStart& start)
    : loop_(loop),
      config_(std::move(config)),
      hostname_(host_name()),
      lifecycle_({.grace = config_.grace,
                  .worker_count = config_.worker_count,
                  .max_restarts = config_.restarts.max_restarts,
                  .detailed_exit_codes = config_.detailed_exit_codes,
                  .exits = config_.exits,
                  .exit_preempted = config_.exit_preempted,
                  .hostname = hostname_}),
      consoles_(loop, STDOUT_FILENO, STDERR_FILENO, config_.called),
      workers_(loop, config_, consoles_, {hostname_, start.ignored_signals},
               [this](int local_rank, Time noticed) { worker_is_dying(local_rank, noticed); }),
      reporter_(loop,
                {config_, lifecycle_, workers_.files(), consoles_,
                 [this] { return services_->session().wait_status(); },
                 [this] { return services_->unreached(); }, [this] { return workers_.progress(); }},
                hostname_),
      events_(loop, config_.signals, start),
      alarm_(loop, [this] { perform(lifecycle_.time_passed(now())); }),
      records_(loop, config_.teardown_timeout,
               {[this](int local_rank) { return workers_.steps(local_rank); },
                [this](int local_rank) { teardown_is_overdue(local_rank); }}),
      progress_(config_.restarts.progress_file, config_.restarts.counts_from_the_first),
      devices_(loop, config_.device_timeout, config_.device_timeout_ends_job,
               {[](const std::string& line) { log::warning(line); },
                [this](const std::string& why) { give_up(why); }}),
      lease_(loop, start.shared == nullptr ? nullptr : &start.shared->lease,
             [this] { children_died(); }),
      standstills_(
          loop, workers_.children(),
          {.pages = [this] { return workers_.pages(); },
           .folder = [this] { return workers_.scratch_folder(); },
           .has_ended_well = [this](int rank) { return lifecycle_.has_ended_well(rank); }},
          {.session = [this]() -> rendezvous::Session* { return &services_->session(); },
           .alarm = [this](const rendezvous::Verdict& verdict) { job_stands_still(verdict); },
           .act = [this](const rendezvous::Verdict& verdict) { end_hung_worker(verdict); },
           .went_on = [this](std::chrono::nanoseconds length) { reporter_.went_on(length); }}),
      replicas_(
          loop,
          {.session = [this]() -> rendezvous::Session* { return &services_->session(); },
           .folder = [this] { return workers_.scratch_folder(); },
           .differ = [this](const rendezvous::ReplicaVerdict& it) { replicas_differ(it); },
           .not_compared = [this](int rank,
                                  const std::string& why) { reporter_.not_compared(rank, why); }}),
      stragglers_(
          loop,
          {.session = [this]() -> rendezvous::Session* { return &services_->session(); },
           .folder = [this] { return workers_.scratch_folder(); },
           .workers_cpu = [this] { return cpu_of_workers(); },
           .are_slow = [this](const rendezvous::StragglerVerdict& it) { reporter_.are_slow(it); }}),
      preemption_(loop,
                  {.session = [this]() -> rendezvous::Session* { return &services_->session(); },
                   .pages = [this] { return workers_.pages(); },
                   .running = [this] { return running_local_ranks(); },
                   .folder = [this] { return workers_.scratch_folder(); },
                   .agreed = [this](const rendezvous::StepOrder& it) { step_is_agreed(it); },
                   .signal = [this](int rank,
                                    const rendezvous::StepOrder& it) { signal_for_step(rank, it); },
                   .stop = [this](int signo, Time end) { stop_requested(signo, end); }}),
      notice_look_(loop, config_.notice_file, [this] { notice_came(SIGTERM); }),
      strikes_(config_.restarts.strike_file) {
  consoles_.take_log();
}

int Agent::run(char* temporary_folder) {
  events_.listen({.child_died = [this] { children_died(); },
                  .stop_requested = [this](int signo) { stop_requested(signo); },
                  .notice = [this](int signo) { notice_came(signo); },
                  .message = [this](int signo) { workers_.children().signal_leaders(signo); },
                  .guardian_died = [this] { guardian_died(); }});
  // Only now, with the handlers in place: a signal that waited since the fork is delivered here.
  unblock_signals(config_.signals);
  notice_look_.begin();
  spawn(loop_, "agent begin", begin(temporary_folder));
  loop_.run();
  // From here on nobody handles signals. One that came now would kill us, and the job would end
  // with another exit code.
  block_signals(config_.signals);
  return exit_code_;
}

// Checks and opens all that can fail on this node alone. It comes before the rendezvous is asked: a
// node that cannot work must not take a seat.
Result<void> Agent::prepare(char* temporary_folder) {
  if (auto checked = reporter_.check(); !checked) return checked.error();
  if (auto read = strikes_.read(config_.restarts.strikes); !read) return read.error();
  if (auto opened = workers_.open_logs(); !opened) return opened.error();
  workers_.open_standbys();
  const auto window =
      parse_straggler_window(process_environment()(kStragglerWindowVariable).value_or(""));
  if (!window) return window.error();
  // Without a witness there are no samples.
  const bool has_witnesses = config_.on_hang != OnHang::kOff && workers_.pages() != nullptr;
  if (has_witnesses) straggler_window_ = *window;
  const std::string& temporary = workers_.logs().temporary_root();
  // From now on the guardian removes this folder if we are killed. A path that does not fit is left
  // out: then the folder would stay.
  if (temporary_folder != nullptr && temporary.size() < kNoteBytes)
    std::memcpy(temporary_folder, temporary.c_str(), temporary.size() + 1);
  status_port_ = StatusPort::open(
      loop_, consoles_.err(),
      {config_, hostname_, lifecycle_, reporter_.incident_log(), reporter_.timeline(), services_,
       [this] { return workers_.progress(); }, workers_.children()});
  operators_ = std::make_unique<NodeOperators>(
      loop_,
      NodeOperators::Sources{.config = config_,
                             .hostname = hostname_,
                             .lifecycle = lifecycle_,
                             .timeline = reporter_.timeline(),
                             .services = services_,
                             .children = workers_.children(),
                             .workers = {.pages = [this] { return workers_.pages(); },
                                         .folder = [this] { return workers_.scratch_folder(); }},
                             .log_folder = workers_.logs().job_folder(),
                             .spread = [this](int rank) { return stragglers_.spread_of(rank); }});
  return monitors_.begin(loop_, config_.watch,
                         {.workers = [this] { return workers_.children().pids(); },
                          .stuck = [this](pid_t pid) { worker_is_stuck(pid); },
                          .state = [this] { return health_line(lifecycle_); },
                          .folder = workers_.scratch_folder()});
}

asio::awaitable<void> Agent::begin(char* temporary_folder) {
  if (const auto prepared = prepare(temporary_folder); !prepared) {
    give_up(prepared.error().message());
    co_return;
  }
  services_ = std::make_unique<NodeServices>(
      loop_, config_.rendezvous, [this](int fd) { return workers_.may_use_store(fd); },
      [this](Time until) { lease_.workers_until(until); });
  const auto opened = co_await services_->open(
      [this](const rendezvous::HostMessage& message) { on_message(message); });
  // open() may wait long for a name look-up. A signal may have ended the job meanwhile.
  if (lifecycle_.phase() == Phase::kDone) co_return;
  if (opened) {
    perform(lifecycle_.start());
  } else if (opened.error().code() == ErrorCode::kNotFound) {
    // The endpoint's host name is unknown: the rendezvous failed. All other errors, such as a taken
    // port, are this launcher's own. The exit codes differ (exit_code.h).
    perform(lifecycle_.session_lost({opened.error()}, now()));
  } else {
    give_up(opened.error().message());
  }
}

// ---- what happens ----

void Agent::children_died() {
  // The job is over. The sweep of WorkerGroup::end() has reaped or named all that was left.
  if (lifecycle_.phase() == Phase::kDone) return;
  if (lifecycle_.phase() == Phase::kRunning && lease_.hides_deaths()) return;
  first_sign_ = now();
  std::vector<WorkerExit> exits = workers_.children().reap();
  for (WorkerExit& exit : exits) {
    if (lease_.has_ended_workers() && exit.exit_code == -SIGKILL) exit.ended_for = kEndedByGuardian;
    exit.wants_restart = config_.exits.wants_restart(exit.exit_code);
    // The kernel may reuse this pid from now on: the watchdog must not kill its next owner.
    monitors_.forget(exit.pid);
    reporter_.worker_ended(exit);
  }
  if (exits.empty()) return;
  look_for_a_pointless_restart();
  perform(lifecycle_.workers_exited(exits, now()));
  if (lifecycle_.phase() == Phase::kFinished) workers_.expect_no_restart();
}

void Agent::look_for_a_pointless_restart() {
  const bool is_running = lifecycle_.phase() == Phase::kRunning;
  if (!is_running || !may_give_up_restarts(config_) || !reporter_.may_be_pointless()) return;
  workers_.catch_up();
  if (reporter_.is_pointless()) lifecycle_.restarts_are_pointless(reporter_.last_words());
}

// Its memory is still being given back. The others need not wait for that.
void Agent::worker_is_dying(int local_rank, Time noticed) {
  if (lifecycle_.phase() != Phase::kRunning || lease_.hides_deaths()) return;
  first_sign_ = noticed;
  auto exit = workers_.children().coming_failure(local_rank);
  if (!exit) return;
  exit->wants_restart = config_.exits.wants_restart(exit->exit_code);
  // If several are dying, only the order of their deaths tells who was first.
  for (int other = 0; other < config_.worker_count; ++other) {
    if (other != local_rank && workers_.children().coming_failure(other)) return;
  }
  reporter_.worker_is_ending(*exit);
  look_for_a_pointless_restart();
  perform(lifecycle_.worker_is_ending(*exit, now()));
}

// A signal after the end of the job, or a second one, means that the user does not wait. It waits
// neither for workers nor for the console's reader.
void Agent::stop_requested(int signo, Time end) {
  const bool is_over = lifecycle_.phase() == Phase::kDone;
  if (is_over || lifecycle_.ending().signal != 0) {
    consoles_.stop_waiting();
    workers_.hurry();
  }
  if (!is_over) perform(lifecycle_.stop_requested(signo, now(), end));
}

// If no worker runs, there is nothing to save.
void Agent::notice_came(int signo) {
  const auto deadline = std::chrono::ceil<std::chrono::milliseconds>(config_.notice_deadline);
  const bool is_told =
      lifecycle_.phase() == Phase::kRunning && preemption_.give_notice(signo, deadline);
  if (!is_told) stop_requested(signo, now() + deadline);
}

void Agent::step_is_agreed(const rendezvous::StepOrder& order) {
  reporter_.step_is_agreed(order);
  if (order.is_end) perform(lifecycle_.leave_after_step(order, now()));
}

void Agent::signal_for_step(int local_rank, const rendezvous::StepOrder& order) {
  if (order.is_end) workers_.children().ask_worker_to_end(local_rank, order.signo);
}

std::vector<int> Agent::running_local_ranks() const {
  std::vector<int> ranks = lifecycle_.own_ranks(true);
  for (int& rank : ranks) rank -= lifecycle_.seat().first_rank;
  return ranks;
}

void Agent::on_message(const rendezvous::HostMessage& message) {
  if (lifecycle_.phase() == Phase::kDone) return;
  // The lifecycle ignores a message about an older round, and starts no workers where it ends. So
  // must the report.
  const auto* broken = std::get_if<rendezvous::RoundBroken>(&message);
  if (broken != nullptr && broken->round == lifecycle_.round().number && !lifecycle_.is_ending())
    reporter_.round_broken(*broken);
  keep_strikes(message);
  standstills_.hear(message);
  replicas_.hear(message);
  stragglers_.hear(message);
  preemption_.hear(message);
  perform(lifecycle_.on_message(message, now()));
  if (broken != nullptr && broken->is_fenced) lease_.workers_until({});
}

void Agent::keep_strikes(const rendezvous::HostMessage& message) {
  const auto* const published = std::get_if<rendezvous::RoundPublished>(&message);
  const auto* const ended = std::get_if<rendezvous::JobEnded>(&message);
  if (published == nullptr && ended == nullptr) return;
  const auto kept = strikes_.keep(published != nullptr ? published->round.strikes : ended->strikes);
  if (!kept) log::warning(kept.error().message());
}

rendezvous::NodeFault Agent::fault_of(const rendezvous::Failure& failure) const {
  using rendezvous::NodeFault;
  if (failure.fault != NodeFault::kNone) return failure.fault;
  if (failure.is_hang) return hangs_in_kernel_ ? NodeFault::kStandstill : NodeFault::kNone;
  const bool is_killed =
      failure.exit_code == -SIGKILL || failure.exit_code == kExitSignalBase + SIGKILL;
  if (is_killed && reporter_.was_short_of_memory()) return NodeFault::kMemory;
  return blames_device(failure.words) ? NodeFault::kDevice : NodeFault::kNone;
}

// No signal ends this worker. It may hold a GPU, so a new attempt beside it would fail or hang: the
// job ends instead.
void Agent::worker_is_stuck(pid_t pid) {
  const int local_rank = workers_.children().local_rank(pid);
  give_up(
      fmt::format(
          "rank {} (local rank {}, pid {}) on {} has been in uninterruptible sleep for {} s, in "
          "the kernel's {}; it may hold a device, so the job is not restarted",
          lifecycle_.seat().first_rank + local_rank, local_rank, pid, hostname_,
          in_seconds(config_.watch.most_sleep), wait_channel(pid)),
      rendezvous::NodeFault::kInKernel);
}

std::chrono::milliseconds Agent::cpu_of_workers() {
  std::chrono::milliseconds sum{0};
  for (const pid_t pid : workers_.children().pids()) sum += cpu_of(pid);
  return sum;
}

void Agent::teardown_is_overdue(int local_rank) {
  if (lifecycle_.phase() != Phase::kRunning) return;
  first_sign_ = now();
  workers_.end_worker_that_recorded(local_rank);
}

// The guardian was killed, so nobody ends what we leave and nobody reads our exit code. End every
// process now, without a grace and without a report.
void Agent::guardian_died() {
  workers_.children().signal_groups(SIGKILL);
  workers_.end(kSweepLimit, std::chrono::milliseconds(0));
  monitors_.end();
  workers_.remove_logs(true);
  exit_code_ = kExitSignalBase + SIGKILL;
  loop_.stop();
}

void Agent::job_stands_still(const rendezvous::Verdict& verdict) {
  const std::string folder = reporter_.stands_still(verdict);
  if (!folder.empty()) standstills_.keep_details(folder, verdict.sentence);
}

void Agent::end_hung_worker(const rendezvous::Verdict& verdict) {
  if (lifecycle_.phase() != Phase::kRunning) return;
  first_sign_ = now();
  if (config_.on_hang == OnHang::kEnd) lifecycle_.restarts_are_pointless();
  hangs_in_kernel_ = verdict.kind == rendezvous::VerdictKind::kInKernel;
  standstills_.end_worker(verdict);
}

bool Agent::compares_replicas() const {
  return config_.check_replicas > 0 && config_.python_hook && workers_.pages() != nullptr;
}

void Agent::replicas_differ(const rendezvous::ReplicaVerdict& verdict) {
  const std::string folder = reporter_.replicas_differ(verdict);
  if (!folder.empty()) replicas_.keep_details(folder, verdict);
}

// ---- what to do about it ----

// Performs the actions in the order given. Sets the alarm last: an action may call give_up(), and
// that changes the lifecycle's next deadline.
void Agent::perform(const Actions& actions) {
  for (const Action& action : actions) {
    std::visit([this](const auto& one) { perform(one); }, action);
  }
  alarm_.set(lifecycle_.look_again_at());
}

void Agent::perform(const RequestRound& /*action*/) {
  standstills_.attempt_ends();
  if (operators_) operators_->attempt_ends();
  replicas_.attempt_ends();
  stragglers_.attempt_ends();
  preemption_.attempt_ends();
  // Nothing of the old attempt may reach the next one: an orphan may hold a GPU or a port.
  workers_.end_attempt(kSweepBetweenRounds, kGraceBetweenRounds);
  // This comes before join(). The join message carries the port on which this node would serve the
  // store.
  const auto store = services_->prepare_store();
  if (!store) return give_up(store.error().message());
  reporter_.joining();
  rendezvous::NodeSpec spec = node_spec(config_, hostname_, *store);
  spec.answers_looks = config_.on_hang != OnHang::kOff && workers_.pages() != nullptr;
  spec.compares_replicas = compares_replicas();
  spec.hears_stragglers = true;
  spec.takes_step_orders = true;
  spec.strikes = strikes_.text();
  services_->session().join(spec);
}

void Agent::perform(const StartWorkers& /*action*/) {
  reporter_.attempt_begins(workers_.logs().job_folder());
  // This comes before the workers, which connect to the store as soon as they run.
  if (lifecycle_.seat().node_rank == 0) services_->serve_store();
  const rendezvous::Round& round = lifecycle_.round();
  if (lifecycle_.seat().node_rank != 0 && config_.rendezvous.shares_store)
    probe_store(loop_, round, hostname_, [this, number = round.number](const std::string& why) {
      const bool is_current = lifecycle_.round().number == number;
      if (is_current && lifecycle_.phase() == Phase::kRunning) give_up(why);
    });
  lease_.attempt_begins();
  is_starting_ = true;
  devices_.wait(workers_.children().standbys(),
                [this] { workers_.prepare_attempt([this] { start_workers(); }); });
}

void Agent::start_workers() {
  is_starting_ = false;
  const rendezvous::Round& round = lifecycle_.round();
  workers_.begin_attempt();
  for (int local_rank = 0; local_rank < config_.worker_count; ++local_rank)
    start_worker(local_rank);
  reporter_.workers_started();
  records_.begin(workers_.error_files(attempt_of(round)));
  workers_.attempt_started(may_restart(config_, round.restart_count));
  if (config_.on_hang != OnHang::kOff)
    standstills_.attempt_begins({.round = round.number,
                                 .workers = config_.worker_count,
                                 .first_rank = lifecycle_.seat().first_rank,
                                 .hostname = hostname_,
                                 .acts = ends_ranks(config_.on_hang)});
  if (compares_replicas())
    replicas_.attempt_begins({.round = round.number,
                              .workers = config_.worker_count,
                              .first_rank = lifecycle_.seat().first_rank});
  stragglers_.attempt_begins({.round = round.number,
                              .workers = config_.worker_count,
                              .first_rank = lifecycle_.seat().first_rank},
                             straggler_window_);
  preemption_.attempt_begins({.round = round.number, .workers = config_.worker_count});
}

// Starts one worker. If not even a process can be made for it, the lifecycle is told that this
// worker ended. It then stops the other workers and asks for a restart.
void Agent::start_worker(int local_rank) {
  const auto pid = workers_.start(lifecycle_.round(), local_rank,
                                  {.seat = lifecycle_.seat(),
                                   .interface = services_->interface_towards_peers(),
                                   .timer_file = monitors_.timer_file(),
                                   .notice_file = notices_come() ? preemption_.notice_file() : ""});
  if (pid) return;
  log::error(pid.error().message());
  // Posted: perform(StartWorkers) has not started all workers yet. Told at once, the lifecycle
  // would signal the workers that live. Those started after that would never be asked to end.
  asio::post(loop_, [this, local_rank, why = pid.error().message()] {
    first_sign_ = now();
    perform(lifecycle_.worker_exited({.local_rank = local_rank, .exit_code = 1, .start_error = why},
                                     now()));
  });
}

// Returns whether the workers were still to be started. Then they end as if the signal had met them
// in their imports.
bool Agent::forget_start(int signo) {
  if (!std::exchange(is_starting_, false)) return false;
  devices_.forget();
  workers_.forget_attempt();
  asio::post(loop_, [this, signo] {
    std::vector<WorkerExit> exits;
    exits.reserve(static_cast<std::size_t>(config_.worker_count));
    for (int local_rank = 0; local_rank < config_.worker_count; ++local_rank)
      exits.push_back({.local_rank = local_rank, .exit_code = -signo});
    perform(lifecycle_.workers_exited(exits, now()));
  });
  return true;
}

void Agent::perform(const SignalWorkers& action) {
  if (forget_start(action.signo)) return;
  preemption_.let_go();
  // Before they are asked: one that ends at once has its devices no more.
  if (may_restart(config_, lifecycle_.round().restart_count)) devices_.note_devices();
  workers_.children().ask_to_end(action.signo);
  reporter_.workers_asked_to_end();
}

void Agent::perform(const SignalShells& action) {
  workers_.children().ask_shells_again(action.signo);
}

void Agent::perform(const KillWorkers& /*action*/) {
  if (!lifecycle_.ending().noticed.empty()) reporter_.notice_is_over();
  workers_.children().signal_groups(SIGKILL);
  // Collect dead shells that reap() kept back, because programs still lived in their groups. The
  // kernel sends no second SIGCHLD for them.
  asio::post(loop_, [this] { children_died(); });
}

void Agent::perform(const ReportFailure& action) {
  rendezvous::Failure failure = action.failure;
  failure.noticed_after =
      std::chrono::duration_cast<std::chrono::microseconds>(now() - first_sign_);
  workers_.catch_up();
  if (failure.words.empty()) failure.words = reporter_.last_words();
  failure.fault = fault_of(failure);
  progress_.tell(failure, workers_.progress());
  services_->session().report_failure(lifecycle_.round().number, failure);
}

void Agent::perform(const ReportSuccess& /*action*/) {
  services_->session().report_success(lifecycle_.round().number);
  reporter_.node_finished();
}

// There may be no session yet: a signal can come while begin() still opens it.
void Agent::perform(const LeaveJob& action) {
  if (services_ != nullptr && services_->is_open()) services_->session().leave(action.reason);
}

// The order matters: end() empties the workers' pipes, and the report quotes their stderr.
void Agent::perform(const Finish& action) {
  standstills_.attempt_ends();
  if (operators_) operators_->attempt_ends();
  replicas_.attempt_ends();
  workers_.end(kSweepLimit, kLeftBehindGrace);
  // This comes before the wait for the console: other nodes may wait for this one.
  if (services_ != nullptr && services_->is_open()) services_->session().gone();
  lease_.workers_until({});
  exit_code_ = action.exit_code;
  reporter_.job_ended(action.exit_code);
  spawn(loop_, "agent end", end());
}

// Waits for a slow reader of the console; signals are handled meanwhile. monitors_.end() and
// loop_.stop() must follow each other in one turn of the loop. The handler of an expired timer is
// already in the loop's queue. It would run with its owner destroyed if the loop went on.
asio::awaitable<void> Agent::end() {
  co_await consoles_.flush();
  workers_.remove_logs(wants_files(config_) || exit_code_ != 0);
  monitors_.end();
  notice_look_.end();
  loop_.stop();
}

// Ends the job for a reason outside the workers, such as a port that is taken.
void Agent::give_up(const std::string& why, rendezvous::NodeFault fault) {
  perform(lifecycle_.give_up({.hostname = hostname_, .message = why, .fault = fault}, now()));
}

}  // namespace

int run_agent(AgentConfig config, const AgentStart& start) {
  // A console whose reader has gone must not kill the agent. Workers get the default back.
  ::signal(SIGPIPE, SIG_IGN);
  // A log file that has reached its limit (ulimit -f) must not end us either.
  ::signal(SIGXFSZ, SIG_IGN);
  const std::string called = config.called;
  std::unique_ptr<Agent> agent;
  try {
    // Never destroyed: its destructor waits for a name look-up that still runs.
    auto* loop = new asio::io_context(1);
    agent = std::make_unique<Agent>(*loop, std::move(config), start);
  } catch (const boost::system::system_error& refused) {
    std::fprintf(stderr, "%s: start the agent: %s\n", called.c_str(),
                 describe_errno(refused.code().value()).c_str());
    return 1;
  }
  return agent->run(start.temporary_folder);
}

}  // namespace ddprun::agent
