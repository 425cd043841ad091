// The command line and the PET_ variables, sorted by flag: what was given, in which words, from
// where. Knows argparse's rules of form (abbreviations, `=`, clusters, where options end), not what
// the values mean. Internal to launcher/.
//
// Built on glibc's getopt_long with "+" and not on a parser library: unique-prefix abbreviations,
// ambiguity between two spellings, clusters such as `-mt3` and options that end at the first
// operand are its own rules, and argparse's.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "launcher/flag_table.h"
#include "launcher/options.h"

namespace ddprun::launcher {

// One flag as it was given. The last of several on the command line counts; the command line beats
// the variable.
struct Given {
  std::string text;               // switches: "1" or "0"
  std::string shown;              // for messages: `--nnodes=2:1` or `PET_NNODES=2:1`
  bool from_environment = false;  // from a PET_ variable
};

struct GivenFlags {
  std::map<FlagId, Given> flags{};
  bool has_script = false;
  std::string script{};
  std::vector<std::string> script_args{};

  bool has(FlagId id) const { return flags.contains(id); }
  // The text given, or the table's default.
  std::string text(FlagId id) const;
  bool is_on(FlagId id) const { return text(id) == "1"; }
  // What a message calls the flag: as given, or `--name=default`.
  std::string shown(FlagId id) const;
  // Whether the user asked for something else than the default.
  bool differs(FlagId id) const;
};

// Reads both sources. Unknown or ambiguous options and missing or surplus values are errors with
// exit code 2; a switch's variable that is no truth value has 1. --help, --version and
// --print-completion end the context where they stand.
std::variant<GivenFlags, UsageError> read_flags(const std::vector<std::string>& args,
                                                const EnvLookup& env);

}  // namespace ddprun::launcher
