// Reads the flags of the output: files, console, filtered copies, the report; and the variables
// that have no flag.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "launcher/options/parse_context.h"

namespace ddprun::launcher {
namespace {

// The flag; else the variable, which is all that torchrun 2.11 has; else the default.
std::string prefix_template(const ParseContext& context) {
  const auto variable = context.env("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
  if (variable && !context.given.has(FlagId::kLogLinePrefixTemplate)) return *variable;
  return context.given.text(FlagId::kLogLinePrefixTemplate);
}

// Nothing if it is not given: there is no filtered file then. An empty text is given, and copies
// every line.
std::optional<std::vector<std::string>> filters(ParseContext& context, FlagId id) {
  if (!context.given.has(id)) return std::nullopt;
  if (context.given.text(FlagId::kLogDir) == "/dev/null")
    context.fail(id, 1, "expected a log folder for the filtered file, not --log-dir=/dev/null");
  return parse_texts(context.given.text(id));
}

// Python's level names. NOTSET shows everything. No line of ours is above an error, so CRITICAL and
// FATAL are errors here.
void read_log_level(ParseContext& context) {
  const auto text = context.env("LOGLEVEL");
  if (!text) return;
  using log::Level;
  struct LevelName {
    std::string_view name;
    Level level;
  };
  constexpr std::array words = {
      LevelName{"NOTSET", Level::kDebug}, LevelName{"DEBUG", Level::kDebug},
      LevelName{"INFO", Level::kInfo},    LevelName{"WARNING", Level::kWarning},
      LevelName{"WARN", Level::kWarning}, LevelName{"ERROR", Level::kError},
      LevelName{"FATAL", Level::kError},  LevelName{"CRITICAL", Level::kError}};
  const auto* word = std::find_if(words.begin(), words.end(),
                                  [&text](const LevelName& known) { return known.name == *text; });
  if (word == words.end()) {
    context.fail(1, fmt::format("LOGLEVEL={}", *text),
                 "expected DEBUG, INFO, WARNING, ERROR or CRITICAL");
    return;
  }
  context.options.log_level = word->level;
}

void warn_of(ParseContext& context, std::string_view name, std::string_view text,
             std::string_view why) {
  context.warn(fmt::format("{}={} has no effect: {}", name, text, why));
}

// As in torchrun, only 1 turns the watchdog on, and no value of the other two variables is an
// error. A bad one is a warning.
void read_watches(ParseContext& context) {
  agent::WatchPlan& watch = context.options.watch;
  if (context.env("TORCHELASTIC_ENABLE_FILE_TIMER") == "1")
    watch.timer_file = context.env("TORCHELASTIC_TIMER_FILE").value_or("");
  constexpr auto most_sleep = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT";
  const auto seconds = context.env(most_sleep);
  if (seconds && !seconds->empty()) {
    const auto parsed = parse_seconds(*seconds);
    if (parsed) {
      watch.most_sleep = *parsed;
    } else {
      warn_of(context, most_sleep, *seconds, parsed.error().message());
    }
  }
  const auto users = context.env(agent::kStoreUsersVariable).value_or("");
  watch.any_store_user = users == "any";
  if (!users.empty() && users != "any" && users != "job")
    warn_of(context, agent::kStoreUsersVariable, users, "expected job or any");
  // An empty text or 0 means no port, and there is nothing to warn of.
  const auto port = context.env(agent::kHealthPortVariable);
  if (port && !port->empty() && *port != "0") {
    const auto parsed = parse_int(*port);
    if (!parsed || *parsed < 1 || *parsed > kMaxPort) {
      warn_of(context, agent::kHealthPortVariable, *port,
              fmt::format("expected a port from 1 to {}", kMaxPort));
    } else if (*parsed == context.options.endpoint.port) {
      warn_of(context, agent::kHealthPortVariable, *port, "the rendezvous has that port");
    } else {
      watch.health_port = static_cast<std::uint16_t>(*parsed);
    }
  }
}

// It is read as torchrun does. Only "1" counts, and the static backend shares its store in any
// case.
void read_store_sharing(ParseContext& context) {
  constexpr auto unshared = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE";
  if (context.env(unshared) != "1") return;
  if (context.options.rendezvous == Rendezvous::kStatic) {
    warn_of(context, unshared, "1",
            "with --rdzv-backend=static ddprun serves the store at MASTER_PORT");
  } else {
    context.options.shares_store = false;
  }
}

// All nodes may have one command line, and the one with the rendezvous could not serve both there.
void read_http(ParseContext& context) {
  if (context.given.text(FlagId::kHttp).empty()) return;
  const auto plan = context.value_of(FlagId::kHttp, parse_http_plan);
  if (plan.port != 0 && plan.port == context.options.endpoint.port)
    context.fail(FlagId::kHttp, 1, "expected another port than that of the rendezvous");
  context.options.http = plan;
}

}  // namespace

void read_output(ParseContext& context) {
  const ParsedArguments& given = context.given;
  Options& options = context.options;
  options.redirects = context.value_of(FlagId::kRedirects, parse_std_spec);
  options.tees = context.value_of(FlagId::kTee, parse_std_spec);
  const std::string log_dir = given.text(FlagId::kLogDir);
  if (!log_dir.empty()) options.log_dir = log_dir;
  // `default` is the name under which torch registers what is built in.
  const std::string specs = given.text(FlagId::kLogsSpecs);
  if (!specs.empty() && specs != "default") {
    context.fail(FlagId::kLogsSpecs, 1,
                 "plugins are Python and are not loaded; use --tee, --redirects and the filters");
  }
  auto ranks = context.value_of(FlagId::kLocalRanksFilter, parse_ranks);
  if (!ranks.empty()) options.shown_ranks = std::move(ranks);
  options.output.prefix_template = prefix_template(context);
  options.output.stdout_filters = filters(context, FlagId::kDuplicateStdoutFilters);
  options.output.stderr_filters = filters(context, FlagId::kDuplicateStderrFilters);
  options.output.fold = given.is_on(FlagId::kFold);
  options.quiet = given.is_on(FlagId::kQuiet);
  options.console_events = context.choice(FlagId::kEventLogHandler, 1) == "console";
  options.error_report = given.text(FlagId::kErrorReport);
  read_http(context);
}

void read_environment(ParseContext& context) {
  read_log_level(context);
  read_watches(context);
  context.options.error_file = context.env("TORCHELASTIC_ERROR_FILE").value_or("");
  read_store_sharing(context);
}

}  // namespace ddprun::launcher
