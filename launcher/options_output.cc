// Where output goes: files, console, filtered copies, the report; and the variables that no flag
// stands for.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "launcher/reading.h"

namespace ddprun::launcher {
namespace {

// The flag, else the variable that torchrun 2.11 has alone, else the default.
std::string prefix_template(const Reading& reading) {
  const auto variable = reading.env("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
  if (variable && !reading.given.has(FlagId::kLogLinePrefixTemplate)) return *variable;
  return reading.given.text(FlagId::kLogLinePrefixTemplate);
}

std::optional<std::vector<std::string>> filters(Reading& reading, FlagId id) {
  if (!reading.given.has(id)) return std::nullopt;
  if (reading.given.text(FlagId::kLogDir) == "/dev/null")
    reading.fail(id, 1, "expected a log folder for the filtered file, not --log-dir=/dev/null");
  return parse_texts(reading.given.text(id));
}

// Python's level names. NOTSET shows everything; CRITICAL and FATAL have no line of ours above an
// error.
void read_log_level(Reading& reading) {
  const auto text = reading.env("LOGLEVEL");
  if (!text) return;
  using log::Level;
  struct Word {
    std::string_view name;
    Level level;
  };
  constexpr std::array words = {Word{"NOTSET", Level::kDebug}, Word{"DEBUG", Level::kDebug},
                                Word{"INFO", Level::kInfo},    Word{"WARNING", Level::kWarning},
                                Word{"WARN", Level::kWarning}, Word{"ERROR", Level::kError},
                                Word{"FATAL", Level::kError},  Word{"CRITICAL", Level::kError}};
  const auto* word = std::find_if(words.begin(), words.end(),
                                  [&text](const Word& known) { return known.name == *text; });
  if (word == words.end()) {
    reading.fail(1, fmt::format("LOGLEVEL={}", *text),
                 "expected DEBUG, INFO, WARNING, ERROR or CRITICAL");
    return;
  }
  reading.options.log_level = word->level;
}

void warn_of(Reading& reading, std::string_view name, std::string_view text, std::string_view why) {
  reading.warn(fmt::format("{}={} has no effect: {}", name, text, why));
}

// As in torchrun nothing but 1 turns the watchdog on, and no value of the other two is an error.
void read_watches(Reading& reading) {
  agent::WatchPlan& watch = reading.options.watch;
  if (reading.env("TORCHELASTIC_ENABLE_FILE_TIMER") == "1")
    watch.timer_file = reading.env("TORCHELASTIC_TIMER_FILE").value_or("");
  constexpr auto most_sleep = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT";
  const auto seconds = reading.env(most_sleep);
  if (seconds && !seconds->empty()) {
    const auto parsed = parse_seconds(*seconds);
    if (parsed) {
      watch.most_sleep = *parsed;
    } else {
      warn_of(reading, most_sleep, *seconds, parsed.error().message());
    }
  }
  const auto port = reading.env(agent::kHealthPortVariable);
  if (port && !port->empty() && *port != "0") {
    const auto parsed = parse_int(*port);
    if (!parsed || *parsed < 1 || *parsed > kMaxPort) {
      warn_of(reading, agent::kHealthPortVariable, *port,
              fmt::format("expected a port from 1 to {}", kMaxPort));
    } else if (*parsed == reading.options.endpoint.port) {
      warn_of(reading, agent::kHealthPortVariable, *port, "the rendezvous has that port");
    } else {
      watch.health_port = static_cast<std::uint16_t>(*parsed);
    }
  }
}

void warn_of_variables(Reading& reading) {
  constexpr auto unshared = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE";
  const auto text = reading.env(unshared);
  if (text && !text->empty() && *text != "0")
    warn_of(reading, unshared, *text, "each attempt has an empty store");
}

}  // namespace

void read_output(Reading& reading) {
  const GivenFlags& given = reading.given;
  Options& options = reading.options;
  options.redirects = reading.value_of(FlagId::kRedirects, parse_std_spec);
  options.tees = reading.value_of(FlagId::kTee, parse_std_spec);
  const std::string log_dir = given.text(FlagId::kLogDir);
  if (!log_dir.empty()) options.log_dir = log_dir;
  if (!given.text(FlagId::kLogsSpecs).empty()) {
    reading.fail(FlagId::kLogsSpecs, 1,
                 "plugins are Python and are not loaded; --tee, --redirects and the filters are "
                 "what there is");
  }
  auto ranks = reading.value_of(FlagId::kLocalRanksFilter, parse_ranks);
  if (!ranks.empty()) options.shown_ranks = std::move(ranks);
  options.output.prefix_template = prefix_template(reading);
  options.output.stdout_filters = filters(reading, FlagId::kDuplicateStdoutFilters);
  options.output.stderr_filters = filters(reading, FlagId::kDuplicateStderrFilters);
  options.output.fold = given.is_on(FlagId::kFold);
  options.quiet = given.is_on(FlagId::kQuiet);
  options.console_events = reading.choice(FlagId::kEventLogHandler, 1) == "console";
  options.error_report = given.text(FlagId::kErrorReport);
}

void read_environment(Reading& reading) {
  read_log_level(reading);
  read_watches(reading);
  reading.options.error_file = reading.env("TORCHELASTIC_ERROR_FILE").value_or("");
  warn_of_variables(reading);
}

}  // namespace ddprun::launcher
