#include "launcher/options/options.h"

#include <fmt/format.h>

#include <algorithm>

#include "launcher/options/help.h"
#include "launcher/options/parse_context.h"

namespace ddprun::launcher {
namespace {

// Lists words for error messages: `spawn, fork or forkserver`.
std::string alternatives(std::vector<std::string> words) {
  const std::string last = words.back();
  words.pop_back();
  return words.empty() ? last : fmt::format("{} or {}", fmt::join(words, ", "), last);
}

// The answer to a question such as --help; nothing if a job is asked for.
std::optional<ParseResult> answer(ParseContext& context) {
  if (context.given.has(FlagId::kHelp)) return Answer{help_text(context.host.called)};
  if (context.given.has(FlagId::kVersion)) return Answer{"ddprun " DDPRUN_VERSION "\n"};
  if (!context.given.has(FlagId::kPrintCompletion)) return std::nullopt;
  const std::string shell = context.choice(FlagId::kPrintCompletion, 2);
  if (context.error) return *context.error;
  return Answer{completion_script(shell)};
}

}  // namespace

void ParseContext::fail(int exit_code, std::string_view what, std::string_view why) {
  // 2 goes before 1, and the first goes before later ones.
  if (error && error->exit_code >= exit_code) return;
  error = UsageError{exit_code, fmt::format("{}: {}", what, why)};
}

void ParseContext::fail(FlagId id, int exit_code, std::string_view why) {
  fail(exit_code, given.shown(id), why);
}

void ParseContext::warn_without_effect(FlagId id, std::string_view why) {
  if (given.has(id) && given.differs(id))
    warn(fmt::format("{} has no effect {}", given.shown(id), why));
}

int ParseContext::integer(FlagId id, const IntRule& rule) {
  const auto value = parse_int(given.text(id));
  if (!value) {
    fail(id, 2, fmt::format("expected {}", rule.expected));
    return rule.min;
  }
  if (*value < rule.min || *value > rule.max)
    fail(id, 1, fmt::format("expected {}", rule.expected));
  return *value;
}

std::string ParseContext::choice(FlagId id, int exit_code) {
  std::string text = given.text(id);
  const auto words = value_words(flag_of(id));
  if (std::find(words.begin(), words.end(), text) == words.end())
    fail(id, exit_code, fmt::format("expected {}", alternatives(words)));
  return text;
}

ParseResult parse(const std::vector<std::string>& args, const EnvLookup& env,
                  const HostFacts& host) {
  auto flags = read_flags(args, env);
  if (const auto* wrong = std::get_if<UsageError>(&flags)) return *wrong;
  ParseContext context(std::get<ParsedArguments>(flags), env, host);
  if (auto words = answer(context)) return *std::move(words);
  // The order decides which of several errors is told. read_environment() also compares the health
  // port with the endpoint, so it must come after read_rendezvous().
  read_scheduler(context);
  if (context.error) return *context.error;
  read_program(context);
  read_lifecycle(context);
  read_rendezvous(context);
  read_output(context);
  read_environment(context);
  if (context.error) return *context.error;
  return context.options;
}

}  // namespace ddprun::launcher
