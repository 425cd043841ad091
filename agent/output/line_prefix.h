// Makes the prefix that stands before each tee'd line on the console and in the filtered file. It
// is the user's template (--log-line-prefix-template) with its macros filled in. It does not check
// the template: what is not a macro stays. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

namespace ddprun::agent {

struct PrefixValues {
  std::string role_name;
  int local_rank = 0;
  int rank = 0;
  std::string hostname;  // the full name; shown up to its first dot
  int restart = 0;
};

// Fills in the macros role_name, local_rank, rank, hostname and restart, written as `${name}` or
// `$name`. The rules are those of Python's string.Template.safe_substitute, which torchrun uses
// (torch/distributed/elastic/multiprocessing/tail_log.py 2.15): `$$` becomes one dollar sign. A
// macro with an unknown name stays as it is. So does a dollar sign with no name behind it.
std::string expand_prefix(std::string_view text, const PrefixValues& values);

}  // namespace ddprun::agent
