// Numbers for people and for tools that take lists of them (ranks, CPUs): "0-3,5". Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

// `ascending` numbers, runs of neighbours as one range. Empty for none.
std::string number_ranges(const std::vector<int>& ascending, std::string_view separator = ",");

}  // namespace ddprun
