// A list of numbers as short text, such as "0-3,5". It is for people (ranks) and for tools that
// take such lists (CPUs for numactl). It only writes; parse_cpu_ranges() in launcher/options/numa.h
// reads. Pure. Any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

// `ascending` must be sorted, each number once. Neighbours become one range, from two on: 0 and 1
// are "0-1". `separator` stands between ranges. No numbers give an empty text.
std::string number_ranges(const std::vector<int>& ascending, std::string_view separator = ",");

}  // namespace ddprun
