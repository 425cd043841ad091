// The command line and the PET_ variables, sorted by flag: what was given, in which words, from
// where. It knows argparse's rules of form (abbreviations, `=`, clusters, where options end) and
// not what the values mean. Internal to launcher/. Main thread, at start.
//
// It is built on glibc's getopt_long with "+" and not on a parser library. Unique prefixes, two
// spellings of one flag, and clusters such as `-mt3` are getopt_long's own rules. So is that
// options end at the first operand. They are argparse's rules, too.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "launcher/options/flag_table.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {

// One flag as it was given. If it is given several times, the last one on the command line counts.
// The command line goes before the variable.
struct ParsedFlag {
  std::string text;               // switches: "1" or "0"
  std::string shown;              // for error messages: `--nnodes=2:1` or `PET_NNODES=2:1`
  bool from_environment = false;  // from a PET_ variable
};

// Everything that was given: the flags, then SCRIPT and its own arguments.
struct ParsedArguments {
  std::map<FlagId, ParsedFlag> flags{};
  bool has_script = false;
  std::string script{};
  std::vector<std::string> script_args{};

  bool has(FlagId id) const { return flags.contains(id); }
  // The text that was given, or the table's default.
  std::string text(FlagId id) const;
  bool is_on(FlagId id) const { return text(id) == "1"; }
  // Returns the flag's name for an error message: as it was given, or `--name=default`.
  std::string shown(FlagId id) const;
  // Returns whether the value is another one than the default.
  bool differs(FlagId id) const;
};

// Reads the command line and then the variables. Exit code 2: an option that is unknown or
// ambiguous, or a value that is missing or too much. Exit code 1: a switch's variable that is no
// truth value. At --help, --version or --print-completion the reading ends, and what follows is not
// looked at.
std::variant<ParsedArguments, UsageError> read_flags(const std::vector<std::string>& args,
                                                     const EnvLookup& env);

}  // namespace ddprun::launcher
