// How a job ends and begins anew: restarts, signals, grace, exit codes.
#include <fmt/format.h>

#include <algorithm>

#include "launcher/options/parse_context.h"
#include "launcher/options/signal_values.h"

namespace ddprun::launcher {
namespace {

// With --restart-window a job may restart for ever. It must not spin then, so there is a pause even
// if nobody asked for one.
constexpr Backoff kWindowBackoff{std::chrono::seconds(1), std::chrono::minutes(1)};

constexpr std::string_view kTimeoutVariable = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";

// Without --max-restarts the other two flags do nothing, and a user who sets them should know.
void read_restarts(ParseContext& context) {
  agent::RestartPlan& plan = context.options.restarts;
  plan.max_restarts = context.integer(FlagId::kMaxRestarts, {.expected = "a whole number from 0"});
  plan.window = context.value_of(FlagId::kRestartWindow, parse_seconds);
  Backoff backoff = plan.window.count() > 0 ? kWindowBackoff : Backoff{};
  if (!context.given.text(FlagId::kRestartBackoff).empty())
    backoff = context.value_of(FlagId::kRestartBackoff, parse_backoff);
  plan.backoff = backoff.base;
  plan.backoff_max = backoff.max;
  plan.most_without_progress = context.integer(FlagId::kMaxRestartsWithoutProgress,
                                               {.expected = "a whole number of attempts; 0: off"});
  plan.counts_from_the_first = context.given.has(FlagId::kMaxRestartsWithoutProgress);
  plan.progress_file = context.given.text(FlagId::kProgress);
  if (plan.max_restarts > 0) return;
  for (const FlagId id : {FlagId::kRestartWindow, FlagId::kRestartBackoff,
                          FlagId::kMaxRestartsWithoutProgress, FlagId::kProgress})
    context.warn_without_effect(id, "without --max-restarts");
}

// A bad name is a warning and no error, as with torchrun: the job runs without that signal.
void read_signals(ParseContext& context) {
  agent::SignalPlan& plan = context.options.signals;
  plan.stop_names = context.given.text(FlagId::kSignalsToHandle);
  SignalList list = parse_signal_list(plan.stop_names);
  plan.stop = std::move(list.signals);
  for (const std::string& name : list.refused) {
    context.warn(fmt::format("{}: {} is no signal that can be handled",
                             context.given.shown(FlagId::kSignalsToHandle), name));
  }
  plan.map = context.value_of(FlagId::kSignalMap, parse_signal_map);
}

// The flag, else the variable.
std::chrono::seconds shutdown_timeout(ParseContext& context) {
  const auto text = context.env(kTimeoutVariable);
  if (!text || context.given.has(FlagId::kShutdownTimeout)) {
    return std::chrono::seconds(
        context.integer(FlagId::kShutdownTimeout, {.expected = "whole seconds from 0"}));
  }
  const auto seconds = parse_int(*text);
  if (!seconds || *seconds < 0)
    context.fail(1, fmt::format("{}={}", kTimeoutVariable, *text), "expected whole seconds from 0");
  return std::chrono::seconds(seconds.value_or(0));
}

// --shutdown-timeout, else the variable that torchrun 2.15 reads, else what the scheduler leaves
// us, else 30 s.
void read_deadlines(ParseContext& context) {
  Options& options = context.options;
  const bool is_said = context.given.has(FlagId::kShutdownTimeout) || context.env(kTimeoutVariable);
  const Deadlines found = ask_deadlines(context.scheduler_facts, context.host.ask, !is_said);
  options.ends_at = found.ends_at;
  options.shutdown_timeout = found.grace ? *found.grace : shutdown_timeout(context);
}

Result<std::vector<int>> parse_exit_codes(std::string_view text) {
  std::vector<int> codes;
  while (!text.empty()) {
    const auto comma = std::min(text.find(','), text.size());
    const auto code = parse_int(text.substr(0, comma));
    if (!code || *code < 0 || *code > 255)
      return Error(ErrorCode::kInvalidArgument, "expected exit codes from 0 to 255, such as 3,4");
    codes.push_back(*code);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return codes;
}

std::optional<std::string> read_map_file(const ParseContext& context, const std::string& path) {
  const auto& read = context.host.scheduler_inputs.read_file;
  return read ? read(path) : std::nullopt;
}

// A path has a slash or no colon, and an entry the other way round.
void read_exit_map(ParseContext& context) {
  const std::string& given = context.given.text(FlagId::kExitMap);
  const bool is_path = given.find('/') != std::string::npos || given.find(':') == std::string::npos;
  std::string text = given;
  if (is_path && !given.empty()) {
    const auto file = read_map_file(context, given);
    if (!file)
      return context.fail(FlagId::kExitMap, 1, "expected KEY:CODE,…, or a file that can be read");
    text = *file;
  }
  auto map = agent::parse_exit_map(text);
  if (!map) return context.fail(FlagId::kExitMap, 1, map.error().message());
  context.options.exits.map = *std::move(map);
}

void read_exits(ParseContext& context) {
  context.options.detailed_exit_codes = context.choice(FlagId::kExitCodes, 2) == "detailed";
  read_exit_map(context);
  agent::ExitPlan& exits = context.options.exits;
  exits.ends_job = context.value_of(FlagId::kExitEndsJob, parse_exit_codes);
  exits.restarts = context.value_of(FlagId::kExitRestarts, parse_exit_codes);
  exits.excludes_node = context.value_of(FlagId::kExitExcludesNode, parse_exit_codes);
  if (std::ranges::find(exits.ends_job, 0) != exits.ends_job.end())
    context.fail(FlagId::kExitEndsJob, 1,
                 "expected exit codes from 1 to 255: with 0 a job ends when all workers have");
  for (const int code : exits.restarts)
    if (std::ranges::find(exits.ends_job, code) != exits.ends_job.end())
      context.fail(FlagId::kExitRestarts, 1,
                   fmt::format("expected codes that --exit-ends-job does not have, as {}", code));
  context.options.device_timeout = context.value_of(FlagId::kDeviceTimeout, parse_seconds);
  context.options.device_timeout_ends_job = context.given.has(FlagId::kDeviceTimeout);
}

void read_strikes(ParseContext& context) {
  agent::RestartPlan& plan = context.options.restarts;
  plan.strikes.most = context.integer(
      FlagId::kStrikes,
      {.max = rendezvous::kMostThreshold, .expected = "a whole number from 1 to 16; 0: off"});
  plan.strikes.half_life = context.value_of(FlagId::kStrikeHalfLife, parse_seconds);
  if (plan.strikes.half_life.count() == 0)
    context.fail(FlagId::kStrikeHalfLife, 1, "expected more than 0 seconds");
  plan.strike_file = context.given.text(FlagId::kStrikeFile);
  if (plan.strikes.most > 0) return;
  for (const FlagId id : {FlagId::kStrikeHalfLife, FlagId::kStrikeFile, FlagId::kExitExcludesNode})
    context.warn_without_effect(id, "without --strikes=N");
}

// A name that is wrong is an error here: the job would lose its work.
void read_notices(ParseContext& context) {
  Options& options = context.options;
  const std::string names = context.given.text(FlagId::kPreemptSignal);
  SignalList list = names.empty() ? SignalList{} : parse_signal_list(names);
  if (!list.refused.empty())
    context.fail(FlagId::kPreemptSignal, 2,
                 fmt::format("{} is no signal that can be handled; expected names as in "
                             "SIGTERM,SIGUSR1",
                             list.refused.front()));
  options.signals.notice = std::move(list.signals);
  options.preempt_file = context.given.text(FlagId::kPreemptFile);
  options.preempt_deadline = options.shutdown_timeout;
  if (!context.given.text(FlagId::kPreemptDeadline).empty())
    options.preempt_deadline = context.value_of(FlagId::kPreemptDeadline, parse_seconds);
  const std::string code = context.given.text(FlagId::kExitPreempted);
  if (!code.empty()) {
    options.exit_preempted = parse_int(code);
    const bool is_code = options.exit_preempted.value_or(-1) >= 0 && *options.exit_preempted <= 255;
    if (!is_code) context.fail(FlagId::kExitPreempted, 2, "expected an exit code from 0 to 255");
  }
  const bool notices_come = !options.signals.notice.empty() || !options.preempt_file.empty();
  if (!notices_come && context.given.has(FlagId::kPreemptDeadline))
    context.warn_without_effect(FlagId::kPreemptDeadline,
                                "without --preempt-signal or --preempt-file");
}

void read_standbys(ParseContext& context) {
  const std::string mode = context.choice(FlagId::kStandby, 2);
  context.options.standby = mode == "0"   ? agent::StandbyMode::kOff
                            : mode == "1" ? agent::StandbyMode::kOn
                                          : agent::StandbyMode::kAuto;
  context.options.python_hook = context.choice(FlagId::kPythonHook, 2) == "1";
  if (mode == "1" && !context.options.python_hook)
    context.warn_without_effect(FlagId::kStandby, "with --python-hook=0");
  const std::string shared = context.choice(FlagId::kShareImports, 2);
  context.options.share_imports = shared == "0"   ? agent::SharedImports::kOff
                                  : shared == "1" ? agent::SharedImports::kOn
                                                  : agent::SharedImports::kAuto;
  if (shared == "1" && !context.options.python_hook)
    context.warn_without_effect(FlagId::kShareImports, "with --python-hook=0");
}

void read_hangs(ParseContext& context) {
  const std::string mode = context.choice(FlagId::kOnHang, 2);
  context.options.on_hang = mode == "off"       ? agent::OnHang::kOff
                            : mode == "restart" ? agent::OnHang::kRestart
                            : mode == "end"     ? agent::OnHang::kEnd
                                                : agent::OnHang::kReport;
  if (agent::ends_ranks(context.options.on_hang) && !context.options.python_hook)
    context.warn_without_effect(FlagId::kOnHang, "with --python-hook=0");
  context.options.check_replicas = context.integer(
      FlagId::kCheckReplicas, {.expected = "a whole number of optimizer steps; 0: off"});
  if (context.options.check_replicas > 0 && !context.options.python_hook)
    context.warn_without_effect(FlagId::kCheckReplicas, "with --python-hook=0");
}

}  // namespace

void read_lifecycle(ParseContext& context) {
  read_restarts(context);
  read_signals(context);
  read_deadlines(context);
  read_exits(context);
  read_strikes(context);
  read_notices(context);
  read_standbys(context);
  read_hangs(context);
  context.options.teardown_timeout = context.value_of(FlagId::kTeardownTimeout, parse_seconds);
  // The value has no effect, but what torchrun refuses is refused, with its exit codes.
  const auto interval = parse_number(context.given.text(FlagId::kMonitorInterval));
  if (!interval || *interval <= 0 || *interval > kMaxSeconds) {
    context.fail(FlagId::kMonitorInterval, interval ? 1 : 2, "expected seconds above 0");
    return;
  }
  context.options.monitor_interval =
      std::chrono::milliseconds(static_cast<std::int64_t>(*interval * 1e3));
}

}  // namespace ddprun::launcher
