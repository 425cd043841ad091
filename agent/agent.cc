#include "agent/agent.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <utility>

#include "agent/descendants.h"
#include "agent/shared_memory.h"
#include "proto/log.h"
#include "store/descriptors.h"

namespace ddprun::agent {
namespace {

// torchrun's list (--signals-to-handle): any of these ends the job.
constexpr int kStopSignals[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
// Passed on to the workers, which may know what to do with them.
constexpr int kPassedOn[] = {SIGUSR1, SIGUSR2};
constexpr const char* kStopSignalNames = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";

// Blocks the loop, so it must end well before the rendezvous takes our silence for death
// (rendezvous/service.h).
constexpr std::chrono::milliseconds kSweepBetweenRounds{1000};
static_assert(kSweepBetweenRounds < rendezvous::kBeatEvery * (rendezvous::kSilenceTicks - 1));

Time now() { return std::chrono::steady_clock::now(); }

std::string this_host() {
  std::string name(HOST_NAME_MAX + 1, '\0');
  if (::gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  name.resize(name.find('\0'));
  return name;
}

auto find_variable(std::vector<std::string>& env, const std::string& name) {
  return std::find_if(env.begin(), env.end(),
                      [&](const std::string& entry) { return entry.starts_with(name + "="); });
}

void set_variable(std::vector<std::string>& env, const std::string& name,
                  const std::string& value) {
  const auto old = find_variable(env, name);
  if (old != env.end()) {
    *old = name + "=" + value;
  } else {
    env.push_back(name + "=" + value);
  }
}

// Leaves what the user set alone.
void add_variable(std::vector<std::string>& env, const std::string& name,
                  const std::string& value) {
  if (find_variable(env, name) == env.end()) env.push_back(name + "=" + value);
}

}  // namespace

Agent::Agent(asio::io_context& loop, AgentConfig config, const GuardianLink& guardian)
    : loop_(loop),
      config_(std::move(config)),
      hostname_(this_host()),
      node_id_(fmt::format("{}-{}-{}", hostname_, ::getpid(), config_.job_cookie)),
      lifecycle_(
          {.grace = config_.grace, .worker_count = config_.worker_count, .hostname = hostname_}),
      children_(guardian.ignored_signals),
      files_(config_, logs_, pipes_, consoles_, hostname_),
      consoles_(loop, STDOUT_FILENO, STDERR_FILENO),
      pipes_(loop),
      child_signal_(loop, SIGCHLD),
      user_signals_(loop),
      guardian_pipe_(loop, guardian.closed_when_guardian_dies),
      timer_(loop) {
  children_.give_workers(store::raise_descriptor_limit());
  const auto& ignored = guardian.ignored_signals;
  const auto handle_unless_ignored = [&](int signo) {
    if (std::find(ignored.begin(), ignored.end(), signo) == ignored.end()) user_signals_.add(signo);
  };
  for (const int signo : kStopSignals) handle_unless_ignored(signo);
  for (const int signo : kPassedOn) handle_unless_ignored(signo);
}

int Agent::run() {
  wait_for_child();
  wait_for_signal();
  wait_for_guardian();
  unblock_signals();
  spawn(loop_, "agent start", start());
  loop_.run();
  return exit_code_;
}

asio::awaitable<void> Agent::start() {
  auto logs = LogTree::make(config_.log_dir, config_.rendezvous.run_id);
  if (!logs) {
    perform(lifecycle_.give_up({.hostname = hostname_, .message = logs.error().message()}, now()));
    co_return;
  }
  logs_ = std::move(*logs);
  link_ = std::make_unique<Link>(loop_, config_.rendezvous);
  const auto opened = co_await link_->open([this](const rendezvous::News& news) { handle(news); });
  if (lifecycle_.phase() == Phase::kDone) co_return;  // a signal was faster
  if (!opened) {
    perform(lifecycle_.link_lost({opened.error()}, now()));
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

void Agent::handle_signal(int signo) {
  if (std::find(std::begin(kPassedOn), std::end(kPassedOn), signo) != std::end(kPassedOn)) {
    children_.signal_leaders(signo);
  } else {
    perform(lifecycle_.stop_requested(signo, now()));
  }
}

void Agent::handle(const rendezvous::News& news) {
  struct Tell {
    Lifecycle& lifecycle;
    Actions operator()(const rendezvous::RoundPublished& it) const {
      return lifecycle.round_published(it, now());
    }
    Actions operator()(const rendezvous::RoundBroken& it) const {
      return lifecycle.round_broken(it, now());
    }
    Actions operator()(const rendezvous::JobEnded& it) const {
      return lifecycle.job_ended(it, now());
    }
    Actions operator()(const rendezvous::LinkLost& it) const {
      return lifecycle.link_lost(it, now());
    }
  };
  perform(std::visit(Tell{lifecycle_}, news));
}

void Agent::reap() {
  for (const WorkerExit& exit : children_.reap()) {
    if (exit.failed()) {
      log::info(fmt::format("failed (exitcode: {}) local_rank: {} (pid: {}) of binary: {}",
                            exit.exit_code, exit.local_rank, exit.pid, config_.entry));
    }
    perform(lifecycle_.worker_exited(exit, now()));
  }
}

// The guardian was killed: nothing may survive us, and nobody waits for a report.
void Agent::die_without_guardian() {
  children_.signal_groups(SIGKILL);
  end_descendants();
  remove_shared_memory(config_.job_cookie);
  logs_.clean_up(true);
  exit_code_ = 128 + SIGKILL;
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
  const auto store = link_->prepare_store();
  if (!store) {
    perform(lifecycle_.give_up({.hostname = hostname_, .message = store.error().message()}, now()));
    return;
  }
  link_->attendance().join({.node_id = node_id_,
                            .hostname = hostname_,
                            .local_world_size = config_.worker_count,
                            .role = config_.role,
                            .node_rank = config_.rendezvous.kind == RendezvousPlan::Kind::kStatic
                                             ? config_.rendezvous.node_rank
                                             : -1,
                            .store_address = store->host,
                            .store_port = store->port,
                            .max_restarts = config_.restarts.max_restarts});
}

void Agent::perform(const StartWorkers& /*action*/) {
  if (lifecycle_.seat() == 0) link_->serve_store();
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
  asio::post(loop_, [this, local_rank] {
    perform(lifecycle_.worker_exited(
        {.local_rank = local_rank, .exit_code = 1, .exec_errno = EAGAIN}, now()));
  });
}

Result<SpawnSpec> Agent::spawn_spec(int local_rank) {
  auto files = files_.open({.attempt = lifecycle_.round().restart_count,
                            .local_rank = local_rank,
                            .rank = lifecycle_.own_seat().first_rank + local_rank});
  if (!files) return files.error();
  const Command command = config_.command(local_rank);
  SpawnSpec spec{.local_rank = local_rank,
                 .file = command.file,
                 .argv = command.argv,
                 .env = config_.base_env};
  for (const auto& [name, value] : encode(worker_env(local_rank, files->error_file)))
    set_variable(spec.env, name, value);
  set_variable(spec.env, "TORCHELASTIC_SIGNALS_TO_HANDLE", kStopSignalNames);
  const std::string& interface = link_->interface_towards_peers();
  if (lifecycle_.round().seats.size() > 1 && !interface.empty())
    add_variable(spec.env, "GLOO_SOCKET_IFNAME", interface);
  spec.out = std::move(files->out);
  spec.err = std::move(files->err);
  return spec;
}

WorkerEnv Agent::worker_env(int local_rank, const std::string& error_file) const {
  const rendezvous::Round& round = lifecycle_.round();
  const rendezvous::Seat& seat = lifecycle_.own_seat();
  return {.rank = seat.first_rank + local_rank,
          .local_rank = local_rank,
          .world_size = round.world_size,
          .local_world_size = seat.local_world_size,
          .node_rank = lifecycle_.seat(),
          .node_count = static_cast<int>(round.seats.size()),
          .role = seat.role,
          .role_rank = seat.role_first_rank + local_rank,
          .role_world_size = seat.role_world_size,
          .master_addr = round.master_addr,
          .master_port = round.master_port,
          .run_id = config_.rendezvous.run_id,
          .restart_count = round.restart_count,
          .max_restarts = config_.restarts.max_restarts,
          .use_agent_store = true,
          .error_file = error_file,
          .job_cookie = config_.job_cookie};
}

void Agent::perform(const SignalWorkers& action) { children_.ask_to_end(action.signo); }

void Agent::perform(const SignalShells& action) { children_.ask_shells_again(action.signo); }

void Agent::perform(const KillWorkers& /*action*/) { children_.signal_groups(SIGKILL); }

void Agent::perform(const ReportFailure& action) {
  link_->attendance().report_failure(lifecycle_.round().number, action.failure);
}

void Agent::perform(const ReportSuccess& /*action*/) {
  link_->attendance().report_success(lifecycle_.round().number);
}

void Agent::perform(const LeaveJob& action) {
  if (link_ != nullptr && link_->is_open()) link_->attendance().leave(action.reason);
}

void Agent::perform(const Finish& action) {
  sweep(kSweepLimit);
  exit_code_ = action.exit_code;
  print_ending();
  consoles_.flush();
  const bool asked_for_files =
      std::any_of(config_.streams.begin(), config_.streams.end(), [](const StreamPlan& plan) {
        return plan.redirect_stdout || plan.redirect_stderr || plan.tee_stdout || plan.tee_stderr;
      });
  logs_.clean_up(asked_for_files || action.exit_code != 0);
  loop_.stop();
}

// Nothing of the attempt that ended may reach the next one, or stay when there is none.
void Agent::sweep(std::chrono::milliseconds limit) {
  for (const Stuck& left : end_descendants(limit)) {
    log::warning(fmt::format(
        "process {} ({}) does not end after SIGKILL; it waits in the kernel in {}; left", left.pid,
        left.name, left.wait_channel));
  }
  pipes_.drain();
  remove_shared_memory(config_.job_cookie);
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

void Agent::print_ending() {
  const Ending& ending = lifecycle_.ending();
  if (ending.succeeded) return;
  const std::string report = failure_report(report_facts());
  consoles_.err().write(report);
  // The report tells of this node's workers; a cause that is none of them gets its line.
  const bool told = !report.empty() && ending.signal == 0 && !ending.link_error &&
                    (!ending.cause || is_own_rank(ending.cause->rank));
  if (!told) consoles_.err().write(ending_line(ending));
}

bool Agent::is_own_rank(int rank) const {
  const rendezvous::Seat& seat = lifecycle_.own_seat();
  return rank >= seat.first_rank && rank < seat.first_rank + seat.local_world_size;
}

ReportFacts Agent::report_facts() const {
  ReportFacts facts{.entry = config_.entry,
                    .hostname = hostname_,
                    .attempt = lifecycle_.round().restart_count,
                    .max_restarts = config_.restarts.max_restarts};
  const auto steady_now = now();
  const auto system_now = std::chrono::system_clock::now();
  for (const EndedWorker& worker : lifecycle_.ended()) {
    if (!worker.exit.failed()) continue;
    const auto ago =
        std::chrono::duration_cast<std::chrono::system_clock::duration>(steady_now - worker.ended);
    const rendezvous::Seat& seat = lifecycle_.own_seat();
    facts.workers.push_back({.worker = worker,
                             .rank = seat.first_rank + worker.exit.local_rank,
                             .when = system_now - ago,
                             .error_file = files_.written_error_file(
                                 lifecycle_.round().restart_count, worker.exit.local_rank)});
  }
  return facts;
}

int run_agent(AgentConfig config, const GuardianLink& guardian) {
  ::signal(SIGPIPE,
           SIG_IGN);  // a console nobody reads must not end the job; workers get the default back
  // Never destroyed: that would wait for a name look-up still under way, and this process ends with
  // the agent anyway.
  auto* loop = new asio::io_context(1);
  Agent agent(*loop, std::move(config), guardian);
  return agent.run();
}

}  // namespace ddprun::agent
