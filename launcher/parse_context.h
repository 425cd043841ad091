// The command line while it is being read: what was given on one side, the Options being filled on
// the other, and the first error. One function for each group of flags. Internal to launcher/.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/flag_table.h"
#include "launcher/given_flags.h"
#include "launcher/options.h"

namespace ddprun::launcher {

struct IntRule {
  int min = 0;
  int max = std::numeric_limits<int>::max();
  std::string_view expected{};  // "a port from 0 to 65535"
};

class ParseContext {
 public:
  ParseContext(const GivenFlags& all_given, const EnvLookup& environment,
               const HostFacts& this_host)
      : given(all_given), env(environment), host(this_host) {}

  // The first error stays, but one that argparse would have found (exit code 2) goes before those
  // that torchrun meets later, so that the exit code is torchrun's.
  void fail(int exit_code, std::string_view what, std::string_view why);
  void fail(FlagId id, int exit_code, std::string_view why);

  void warn(std::string text) { options.warnings.push_back(std::move(text)); }
  void warn_without_effect(FlagId id, std::string_view why);  // where it is not its default

  // Not a whole number: 2, as argparse's type check. Out of range: 1.
  int integer(FlagId id, const IntRule& rule);

  // The flag's text as a value; an error is 1, or 2 where it says "not built yet".
  template <typename Value>
  Value value_of(FlagId id, Result<Value> (*parse_text)(std::string_view)) {
    auto parsed = parse_text(given.text(id));
    if (parsed) return *std::move(parsed);
    fail(id, parsed.error().code() == ErrorCode::kRejected ? 2 : 1, parsed.error().message());
    return Value{};
  }

  // One of the words in the table's metavar; else an error with this exit code.
  std::string choice(FlagId id, int exit_code);

  const GivenFlags& given;
  const EnvLookup& env;
  const HostFacts& host;
  Options options{};
  std::optional<UsageError> error{};
};

void read_program(ParseContext& context);      // SCRIPT, its mode, workers and their devices
void read_lifecycle(ParseContext& context);    // restarts, signals, grace, exit codes
void read_rendezvous(ParseContext& context);   // how nodes meet
void read_output(ParseContext& context);       // files, console, reports
void read_environment(ParseContext& context);  // torchrun's variables that no flag stands for

}  // namespace ddprun::launcher
