// What stands before each tee'd line on the console: the user's template with its macros filled in.
// Pure.
#pragma once

#include <string>
#include <string_view>

namespace ddprun::agent {

struct PrefixValues {
  std::string role_name;
  int local_rank = 0;
  int rank = 0;
  std::string hostname;  // in full; shown up to its first dot
  int restart = 0;
};

// Macros role_name, local_rank, rank, hostname and restart, as `${name}` or `$name`, by the rules
// of Python's string.Template.safe_substitute, which torchrun uses (torch/distributed/elastic/
// multiprocessing/tail_log.py 2.15): `$$` is a dollar sign; what is unknown or no name stays.
std::string expand_prefix(std::string_view text, const PrefixValues& values);

}  // namespace ddprun::agent
