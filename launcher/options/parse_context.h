// The command line while it is being read. It has the parsed arguments, the Options that are being
// filled, and the first error. Each group of flags has one read_…() function (options_*.cc).
// Internal to launcher/. One call of parse() owns it; main thread.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/options/flag_table.h"
#include "launcher/options/options.h"
#include "launcher/options/parsed_arguments.h"

namespace ddprun::launcher {

// The rule for a whole number. `expected` says it in an error message: "a port from 0 to 65535".
struct IntRule {
  int min = 0;
  int max = std::numeric_limits<int>::max();
  std::string_view expected{};
};

class ParseContext {
 public:
  ParseContext(ParsedArguments& all_given, const EnvLookup& environment, const HostFacts& this_host)
      : given(all_given), env(environment), host(this_host) {}

  // Keeps one error. The first one stays, except that exit code 2 replaces exit code 1. argparse
  // finds its errors before torchrun looks at values. So torchrun's exit code would be 2.
  void fail(int exit_code, std::string_view what, std::string_view why);
  void fail(FlagId id, int exit_code, std::string_view why);

  void warn(std::string text) { options.warnings.push_back(std::move(text)); }
  // Warns only if the flag was given and is not its default.
  void warn_without_effect(FlagId id, std::string_view why);

  // The flag as a whole number. If the text is no number, the exit code is 2, as argparse's type
  // check has it. If the number is out of range, it is 1.
  int integer(FlagId id, const IntRule& rule);

  // The flag's text as a value. The exit code of an error is 1, or 2 if the value is not built yet.
  // After an error the result is a default value, and reading goes on.
  template <typename Value>
  Value value_of(FlagId id, Result<Value> (*parse_text)(std::string_view)) {
    auto parsed = parse_text(given.text(id));
    if (parsed) return *std::move(parsed);
    fail(id, parsed.error().code() == ErrorCode::kRejected ? 2 : 1, parsed.error().message());
    return Value{};
  }

  // One of the words in the table's metavar. Any other text is an error with this exit code.
  std::string choice(FlagId id, int exit_code);

  ParsedArguments& given;
  const EnvLookup& env;
  const HostFacts& host;
  SchedulerFacts scheduler_facts{};  // the scheduler that started us, whatever the flags say
  // Whether the rendezvous is here, if the scheduler says it.
  std::optional<bool> is_first_node{};
  Options options{};
  std::optional<UsageError> error{};
};

// Replaces flags that were not given by the scheduler's values. The others need it.
void read_scheduler(ParseContext& context);
void read_program(ParseContext& context);      // SCRIPT, its mode, workers and their devices
void read_lifecycle(ParseContext& context);    // restarts, signals, grace, exit codes
void read_rendezvous(ParseContext& context);   // how nodes meet
void read_output(ParseContext& context);       // files, console, reports
void read_environment(ParseContext& context);  // torchrun's variables that no flag stands for

}  // namespace ddprun::launcher
