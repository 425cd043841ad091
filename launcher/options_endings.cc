// How a job ends and begins anew: restarts, signals, grace, exit codes.
#include <fmt/format.h>

#include "launcher/reading.h"
#include "launcher/signal_values.h"

namespace ddprun::launcher {
namespace {

// With --restart-window a crash loop must not spin, so there is a pause without asking for one.
constexpr Backoff kWindowBackoff{std::chrono::seconds(1), std::chrono::minutes(1)};

void read_restarts(Reading& reading) {
  agent::RestartPlan& plan = reading.options.restarts;
  plan.max_restarts = reading.integer(FlagId::kMaxRestarts, {.expected = "a whole number from 0"});
  plan.window = reading.value_of(FlagId::kRestartWindow, parse_seconds);
  Backoff backoff = plan.window.count() > 0 ? kWindowBackoff : Backoff{};
  if (!reading.given.text(FlagId::kRestartBackoff).empty())
    backoff = reading.value_of(FlagId::kRestartBackoff, parse_backoff);
  plan.backoff = backoff.base;
  plan.backoff_max = backoff.max;
  if (plan.max_restarts > 0) return;
  for (const FlagId id : {FlagId::kRestartWindow, FlagId::kRestartBackoff})
    reading.warn_without_effect(id, "without --max-restarts");
}

void read_signals(Reading& reading) {
  agent::SignalPlan& plan = reading.options.signals;
  plan.stop_names = reading.given.text(FlagId::kSignalsToHandle);
  SignalList list = parse_signal_list(plan.stop_names);
  plan.stop = std::move(list.signals);
  for (const std::string& name : list.refused) {
    reading.warn(fmt::format("{}: {} is no signal that can be handled",
                             reading.given.shown(FlagId::kSignalsToHandle), name));
  }
  plan.map = reading.value_of(FlagId::kSignalMap, parse_signal_map);
}

// --shutdown-timeout, else the variable that torchrun 2.15 reads, else 30 s.
std::chrono::seconds shutdown_timeout(Reading& reading) {
  constexpr std::string_view variable = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
  const auto text = reading.env(variable);
  if (!text || reading.given.has(FlagId::kShutdownTimeout)) {
    return std::chrono::seconds(
        reading.integer(FlagId::kShutdownTimeout, {.expected = "whole seconds from 0"}));
  }
  const auto seconds = parse_int(*text);
  if (!seconds || *seconds < 0)
    reading.fail(1, fmt::format("{}={}", variable, *text), "expected whole seconds from 0");
  return std::chrono::seconds(seconds.value_or(0));
}

}  // namespace

void read_endings(Reading& reading) {
  read_restarts(reading);
  read_signals(reading);
  reading.options.shutdown_timeout = shutdown_timeout(reading);
  reading.options.detailed_exit_codes = reading.choice(FlagId::kExitCodes, 2) == "detailed";
  const auto interval = parse_number(reading.given.text(FlagId::kMonitorInterval));
  if (!interval || *interval <= 0 || *interval > kMaxSeconds) {
    reading.fail(FlagId::kMonitorInterval, interval ? 1 : 2, "expected seconds above 0");
    return;
  }
  reading.options.monitor_interval =
      std::chrono::milliseconds(static_cast<std::int64_t>(*interval * 1e3));
}

}  // namespace ddprun::launcher
