// The values of NCCL_… and GLOO_… as these libraries read them. Pure.
#pragma once

#include <algorithm>
#include <cctype>
#include <string_view>

#include "launcher/doctor/node_facts.h"

namespace ddprun::launcher {

// Empty if the variable is not set.
inline std::string_view value_of(const NodeQuestion& question, const char* name) {
  const auto found = question.variables.find(name);
  return found == question.variables.end() ? std::string_view() : std::string_view(found->second);
}

// NCCL takes its words in any case.
inline bool is_word(std::string_view value, std::string_view word) {
  return std::equal(
      value.begin(), value.end(), word.begin(), word.end(),
      [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); });
}

inline bool is_set(std::string_view value) { return !value.empty() && value != "0"; }

}  // namespace ddprun::launcher
