// Slurm's host lists: `a[01-03,7]b[1-2],c` as the names of hosts, as `scontrol show hostnames` of
// Slurm 22.05 prints them. No files, no variables. Pure; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ddprun {

// More hosts than a job can have nodes (16384), and a list as long as Slurm's own longest range.
inline constexpr std::size_t kMaxHosts = 65536;
// A host name is no longer (gethostname(2)), and a list has few more characters than its names.
inline constexpr std::size_t kMaxHostNameBytes = 255;
// Slurm's own lists have up to five brackets, one for each dimension of the network.
inline constexpr std::size_t kMaxBrackets = 8;

// Names in the list's order, each as often as the list has it. Commas and blanks stand between
// entries. A number is filled up with zeros to the length of its range's beginning. An empty text
// is no host. Error kInvalidArgument: brackets that do not close or have something behind them, a
// range that is none or runs backwards. Error kLimit: too much of something.
Result<std::vector<std::string>> parse_host_list(std::string_view text);

}  // namespace ddprun
