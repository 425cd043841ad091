#include "agent/report/reporter.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "agent/report/advice.h"
#include "agent/report/no_progress.h"
#include "agent/report/report.h"
#include "base/environment.h"
#include "base/file_handle.h"
#include "base/log.h"
#include "base/net/address.h"
#include "base/number_ranges.h"
#include "base/shown_text.h"
#include "base/signal_name.h"
#include "proto/token_file.h"

namespace ddprun::agent {
namespace {

// A rank that ended with 0 leaves the others alone for so long before anybody is told.
constexpr std::chrono::seconds kLeftAlone{10};
// How often the line of waiting is written anew.
constexpr std::chrono::seconds kWaitingTick{1};

std::int64_t unix_ms() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
}

}  // namespace

Reporter::Reporter(asio::io_context& loop, const Sources& sources, std::string hostname)
    : sources_(sources),
      hostname_(std::move(hostname)),
      post_mortem_(sources.config, sources.files),
      notices_(sources.config.called, sources.config.quiet, ::isatty(STDERR_FILENO) == 1),
      incidents_(loop, sources.progress,
                 [this](const Incident& incident) { tell_incident(incident); }),
      history_(loop, sources.progress,
               [this](const std::string& line) {
                 if (keeps_history_) append("history.jsonl", line);
               }),
      keeps_history_(process_environment()(kHistoryVariable) == "1"),
      waiting_timer_(loop),
      wait_(loop, [this](const std::string& line) { say(line); }),
      left_alone_alarm_(loop, [this] { look_for_ranks_left_alone(); }) {}

void Reporter::joining() {
  if (first_death_) deaths_.add(death());
  first_death_.reset();
  incidents_.stopped();
  history_.round_ended();
  tell(EventState::kRendezvous);
  joining_since_ = now();
  if (notices_.shows_waiting()) tell_of_missing_token();
  show_waiting();
}

// Then no other host reaches the rendezvous. A name may stand for more than one address.
bool Reporter::listens_on_loopback(const RendezvousPlan& plan) {
  return is_loopback(plan.host) && plan.kind != RendezvousPlan::Kind::kEtcd;
}

void Reporter::tell_of_missing_token() {
  const RendezvousPlan& plan = sources_.config.rendezvous;
  if (plan.max_nodes == 1 || std::exchange(warned_of_token_, true) || listens_on_loopback(plan))
    return;
  const bool has_token = !plan.token.empty() && !plan.token_is_optional;
  if (has_token && plan.token.size() >= kShortToken) return;
  if (has_token)
    return log::warning(fmt::format(
        "the job's token has {} bytes: an impostor of the host can find it by trying; make one "
        "with `openssl rand -hex 32`",
        plan.token.size()));
  log::warning(
      "no DDPRUN_TOKEN is set: anyone who knows the rendezvous id can join this job; set it, or "
      "DDPRUN_TOKEN_FILE, to one secret on all nodes");
}

// Shows the line of waiting once a second, for as long as the node joins. Only on a terminal, and
// only if there are other nodes.
void Reporter::show_waiting() {
  const RendezvousPlan& plan = sources_.config.rendezvous;
  if (!notices_.shows_waiting() || plan.max_nodes == 1) {
    wait_.begin([this](std::chrono::seconds waited) {
      return notices_.still_waiting(rendezvous_place(), waited, sources_.wait_status(), no_host());
    });
    return;
  }
  waiting_timer_.expires_after(kWaitingTick);
  waiting_timer_.async_wait([this](boost::system::error_code cancelled) {
    // The phase is asked too: a timer that has expired can no longer be cancelled.
    if (cancelled || sources_.lifecycle.phase() != Phase::kJoining) return;
    say(notices_.waiting(rendezvous_place(),
                         std::chrono::duration_cast<std::chrono::seconds>(now() - joining_since_),
                         sources_.wait_status(), no_host()));
    show_waiting();
  });
}

NoHost Reporter::no_host() const {
  rendezvous::UnreachedHost it = sources_.unreached();
  if (it.ends == Time::max()) return {};
  return {std::chrono::ceil<std::chrono::seconds>(it.ends - now()), std::move(it.why)};
}

std::string Reporter::rendezvous_place() const {
  const RendezvousPlan& plan = sources_.config.rendezvous;
  if (plan.kind == RendezvousPlan::Kind::kAlone) return "this host";
  if (plan.kind != RendezvousPlan::Kind::kEtcd) return fmt::format("{}:{}", plan.host, plan.port);
  std::string members;
  for (const rendezvous::EtcdMemberPlan& member : plan.etcd.members)
    members += fmt::format("{}{}:{}", members.empty() ? "" : ",", member.host, member.port);
  return "the leader that is elected in etcd at " + members;
}

void Reporter::workers_asked_to_end() {
  left_alone_alarm_.set(Time::max());
  wait_.begin([this](std::chrono::seconds waited) {
    const Lifecycle& lifecycle = sources_.lifecycle;
    const std::vector<int> ranks = lifecycle.own_ranks(true);
    if (ranks.empty()) return std::string();
    const auto left = std::chrono::ceil<std::chrono::seconds>(lifecycle.kill_at() - now()).count();
    return notices_.still_waiting(
        fmt::format("{} of {} workers have not ended after {}, rank{} {}; {}", ranks.size(),
                    sources_.config.worker_count, signal_name(lifecycle.closing_signal()),
                    ranks.size() == 1 ? "" : "s", number_ranges(ranks),
                    left > 0 ? fmt::format("SIGKILL in {} s", left) : "SIGKILL was sent"),
        waited);
  });
}

void Reporter::node_finished() {
  left_alone_alarm_.set(Time::max());
  wait_.begin([this](std::chrono::seconds waited) {
    return notices_.still_waiting(
        "this node's workers have ended with 0, and those of other nodes still run", waited);
  });
}

// As with torchrun the job goes on until all have ended.
void Reporter::look_for_ranks_left_alone() {
  const Lifecycle& lifecycle = sources_.lifecycle;
  if (noticed_left_alone_ || lifecycle.phase() != Phase::kRunning) return;
  noticed_left_alone_ = true;
  say(notices_.left_alone(lifecycle.own_ranks(false), lifecycle.own_ranks(true), kLeftAlone));
}

void Reporter::end_waiting() {
  wait_.end();
  left_alone_alarm_.set(Time::max());
  waiting_timer_.cancel();
  say(notices_.waited());
}

void Reporter::attempt_begins(const std::string& log_folder) {
  const std::vector<IncidentStage> stages = incidents_.formed();
  incident_log_.took(stages);
  timeline_.round_began(sources_.lifecycle.round().number, sources_.lifecycle.round().world_size,
                        unix_ms());
  log_folder_ = log_folder;
  const AgentConfig& config = sources_.config;
  history_.round_began({config.rendezvous.run_id, hostname_, config.worker_count},
                       sources_.lifecycle, now() - joining_since_);
  end_waiting();  // first: else the next text would stand behind the line of waiting
  if (!stages.empty()) tell_cost(stages_line(stages));
  say(notices_.started(sources_.lifecycle.round(), log_folder));
  // Without a terminal only now, and on one node. One that is refused, or gives up, prints one
  // line, and that is why.
  if (sources_.lifecycle.seat().node_rank == 0) tell_of_missing_token();
  tell(EventState::kAssignRanks);
  tell(EventState::kStart);
  post_mortem_.attempt_started();
  attempt_began_ = now();
}

// On the console where the incident itself was told there.
void Reporter::tell_cost(const std::string& stages) {
  const std::string line = notices_.cost(stages);
  if (line.empty()) log::info(stages);
  say(line);
}

void Reporter::worker_ended(const WorkerExit& exit) {
  if (exit.failed()) {
    if (sources_.lifecycle.phase() == Phase::kRunning) worker_is_ending(exit);
    log::info(fmt::format("failed (exitcode: {}) local_rank: {} (pid: {}) of binary: {}",
                          exit.exit_code, exit.local_rank, exit.pid, sources_.config.entry));
  }
  // Anew with each that ends: ranks that end one after the other are as they should be.
  const bool may_leave_others = !exit.failed() && sources_.lifecycle.phase() == Phase::kRunning;
  if (may_leave_others && !noticed_left_alone_) left_alone_alarm_.set(now() + kLeftAlone);
  tell(exit.failed() ? EventState::kFailed : EventState::kSucceeded, exit);
}

void Reporter::worker_is_ending(const WorkerExit& exit) {
  incidents_.broke();
  if (first_death_) return;
  first_death_ = exit;
  const std::vector<WorkerProgress> progress = sources_.progress();
  its_facts_ = {
      .exit_code = exit.exit_code,
      .lived = std::chrono::duration_cast<std::chrono::milliseconds>(now() - attempt_began_),
      .stepped = std::any_of(progress.begin(), progress.end(),
                             [](const WorkerProgress& one) { return one.steps > 0; })};
}

// Its stderr may be longer by now than when it died.
Death Reporter::death() const {
  Death death = its_facts_;
  death.last_line = last_said(
      sources_.files.stderr_tail(attempt_of(sources_.lifecycle.round()), first_death_->local_rank));
  return death;
}

std::string Reporter::last_words() const {
  if (!first_death_) return {};
  return agent::last_words(
      sources_.files.stderr_tail(attempt_of(sources_.lifecycle.round()), first_death_->local_rank));
}

bool Reporter::is_pointless() {
  gave_up_ = first_death_ && deaths_.is_pointless(death());
  return gave_up_;
}

// A notice while there are few of them, else a line of the log at LOGLEVEL=INFO.
void Reporter::round_broken(const rendezvous::RoundBroken& message) {
  const rendezvous::Failure& cause = message.cause;
  incidents_.broke();
  incidents_.explained(cause, sources_.lifecycle.round());
  incident_log_.round_broken(message, std::chrono::system_clock::now());
  timeline_.round_ended(unix_ms());
  history_.broken(message);
  const int restarts = sources_.lifecycle.round().restart_count + (message.is_resize ? 0 : 1);
  const std::string line = message.is_resize
                               ? notices_.resizing(cause)
                               : notices_.restarting(cause, restarts, sources_.config.restarts);
  if (line.empty()) log::info(fmt::format("restart {}: {}", restarts, cause.message));
  say(line);
  if (!message.is_resize) warn_of_no_progress(cause);
}

// The row of attempts that would end the job if the user had asked for it.
void Reporter::warn_of_no_progress(const rendezvous::Failure& cause) {
  const RestartPlan& plan = sources_.config.restarts;
  const rendezvous::Round& round = sources_.lifecycle.round();
  if (plan.ends_without_progress()) return;
  progress_.attempt_failed(round.number, round.node_count, cause);
  const auto why = progress_.stuck(plan.most_without_progress);
  if (!why || std::exchange(warned_of_no_progress_, true)) return;
  if (sources_.lifecycle.seat().node_rank != 0 || sources_.config.quiet) return;
  const std::string& called = sources_.config.called;
  say(fmt::format("{}{}: restarts go on; --max-restarts-without-progress={} ends such a job\n",
                  no_progress_text(*why, called), called, plan.most_without_progress));
}

void Reporter::job_ended(int exit_code) {
  end_waiting();
  timeline_.round_ended(unix_ms());
  incidents_.end();
  const Ending& ending = sources_.lifecycle.ending();
  history_.job_ended(ending, ending_text(ending));
  tell(ending.succeeded || ending.drained ? EventState::kSucceeded : EventState::kFailed);
  // The records before the report: they are there even if nobody reads the console.
  ReportFacts facts = post_mortem_.examine(sources_.lifecycle, hostname_);
  facts.incidents = std::move(reported_incidents_);
  post_mortem_.file(facts, ending, exit_code);
  if (ending.succeeded || (ending.drained && sources_.config.quiet)) return;
  const std::string report = failure_report(facts);
  Console& err = sources_.consoles.err();
  // Later lines are never dropped, even if the console's queue is full of workers' output.
  err.begin_last_words();
  err.begin_line();  // a worker may have died behind a prompt or a progress bar
  say(report);
  // The report tells only of this node's workers. Any other cause gets a line of its own.
  const bool told = !report.empty() && ending.signal == 0 && !ending.session_error &&
                    !ending.drained &&
                    (!ending.cause || sources_.lifecycle.is_own_rank(ending.cause->rank));
  if (!told) say(fmt::format("{}: {}\n", sources_.config.called, ending_text(ending)));
  if (ending.no_progress) return say(no_progress_text(*ending.no_progress, sources_.config.called));
  if (ending.signal == 0) tell_what_helps(facts);
}

void Reporter::tell_what_helps(const ReportFacts& facts) {
  const AgentConfig& config = sources_.config;
  if (first_death_) deaths_.add(death());
  if (const std::string clause = deaths_.clause(); first_death_ && !clause.empty()) {
    const int left = config.restarts.max_restarts - sources_.lifecycle.round().restart_count;
    say(fmt::format("{}: {}{}\n", config.called, shown_on_console(clause),
                    gave_up_ && left > 0
                        ? fmt::format("; that cannot change by another try, so {} of {} restarts "
                                      "were not made",
                                      left, config.restarts.max_restarts)
                        : ""));
  }
  const auto cause = root_cause(facts);
  if (!cause) return;
  for (const std::string& advice : advice_for(facts.workers[*cause], config))
    say(fmt::format("{}: {}\n", config.called, advice));
}

// Workers that fail again and again would fill the console: it shows only from what the job
// recovered. A record for programs only where the user keeps log files.
void Reporter::tell_incident(const Incident& incident) {
  reported_incidents_.push_back(incident);
  incident_log_.ended(incident);
  if (!incident.recovered) log::info(incident_line(incident));
  if (incident.recovered && !sources_.config.quiet)
    say(fmt::format("{}: {}\n", sources_.config.called, incident_line(incident)));
  append("incidents.jsonl", incident_json(incident));
}

void Reporter::append(const char* name, const std::string& line) const {
  if (sources_.config.log_dir.empty() || log_folder_.empty()) return;
  const std::string path = log_folder_ + "/" + name;
  constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC;
  constexpr mode_t kMode = 0666;  // less the umask
  const FileHandle file(::open(path.c_str(), kFlags, kMode));
  const std::string text = line + "\n";
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    log::warning("cannot write " + path);
}

void Reporter::tell(EventState state, const std::optional<WorkerExit>& worker) {
  const AgentConfig& config = sources_.config;
  const Lifecycle& lifecycle = sources_.lifecycle;
  if (!config.console_events) return;
  const bool seated = worker && lifecycle.had_round();
  using std::chrono::milliseconds;
  say(event_line({.state = state,
                  .hostname = hostname_,
                  .since_start = std::chrono::duration_cast<milliseconds>(now() - started_),
                  .worker = worker,
                  .rank = seated ? lifecycle.seat().first_rank + worker->local_rank : 0},
                 config, lifecycle.round().restart_count));
}

std::string Reporter::next_folder(const std::string& what, std::pair<int, int>& so_far) const {
  const int attempt = attempt_of(sources_.lifecycle.round());
  if (so_far.first != attempt) so_far = {attempt, 0};
  const int number = so_far.second++;
  if (log_folder_.empty()) return "";
  return fmt::format("{}/attempt_{}/{}_{}", log_folder_, attempt, what, number);
}

std::string Reporter::replicas_differ(const rendezvous::ReplicaVerdict& verdict) {
  std::string folder = next_folder("replicas", differences_);
  const std::string sentence = shown_text(verdict.sentence);
  incident_log_.replicas_differ("replicas differ: " + sentence, std::chrono::system_clock::now());
  append("incidents.jsonl", replica_incident_json(verdict, attempt_of(sources_.lifecycle.round())));
  say(fmt::format("{}: replicas differ: {}{}\n", sources_.config.called, sentence,
                  folder.empty() ? "" : "; details in " + folder));
  return folder;
}

void Reporter::step_is_agreed(const rendezvous::StepOrder& order) {
  if (sources_.config.quiet) return;
  const std::string what = order.step > 0
                               ? fmt::format("all ranks save at the end of step {}", order.step)
                               : "the ranks of this node save at once";
  const std::string who = order.hostname.empty() ? "an operator" : shown_text(order.hostname);
  const std::string why =
      order.is_end ? fmt::format("{} was given notice ({})", who, signal_name(order.signo))
                   : who + " asked for a checkpoint";
  const std::string until =
      order.is_end ? fmt::format(", and end within {} s",
                                 std::chrono::ceil<std::chrono::seconds>(order.deadline).count())
                   : "";
  say(fmt::format("{}: {}: {}{}\n", sources_.config.called, why, what, until));
}

// Said in spite of --quiet: what these workers had to save is lost.
void Reporter::notice_is_over() {
  const std::vector<int> ranks = sources_.lifecycle.own_ranks(true);
  if (ranks.empty()) return;
  say(fmt::format(
      "{}: rank{} {} on {} had not ended when the time after the notice was over: killed\n",
      sources_.config.called, ranks.size() == 1 ? "" : "s", number_ranges(ranks, ", "), hostname_));
}

void Reporter::are_slow(const rendezvous::StragglerVerdict& verdict) {
  const std::string sentence = shown_text(verdict.sentence);
  history_.are_slow(verdict);
  incident_log_.ranks_are_slow(sentence, std::chrono::system_clock::now());
  append("incidents.jsonl",
         straggler_incident_json(verdict, attempt_of(sources_.lifecycle.round())));
  if (!sources_.config.quiet) say(fmt::format("{}: {}\n", sources_.config.called, sentence));
}

void Reporter::not_compared(int rank, const std::string& why) {
  log::warning(fmt::format("--check-replicas: rank {}: {}", rank, shown_text(why)));
}

std::string Reporter::stands_still(const rendezvous::Verdict& verdict) {
  timeline_.stands_still(verdict.sentence, verdict.ranks, unix_ms());
  history_.stands_still(verdict);
  std::string folder = next_folder("standstill", standstills_);
  say(fmt::format("{}: the job stands still: {}{}\n", sources_.config.called,
                  shown_text(verdict.sentence), folder.empty() ? "" : "; details in " + folder));
  return folder;
}

void Reporter::went_on(std::chrono::nanoseconds length) {
  timeline_.went_on(unix_ms());
  history_.went_on(length);
  if (sources_.config.quiet) return;
  const auto seconds = std::chrono::round<std::chrono::seconds>(length).count();
  say(fmt::format("{}: the job went on after {} s\n", sources_.config.called, seconds));
}

void Reporter::say(const std::string& text) {
  if (!text.empty()) sources_.consoles.err().write(text);
}

}  // namespace ddprun::agent
