// Numbers in the variables of schedulers. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/environment.h"

namespace ddprun::launcher {

// No job has more nodes, and no node more tasks.
inline constexpr std::int64_t kMaxCount = 1 << 20;

// A whole number from 0.
std::optional<std::int64_t> parse_count(std::string_view text);

// Empty if the variable is not set, and for an empty name.
std::string variable_text(const EnvLookup& env, std::string_view name);

// At most kMaxCount.
std::optional<int> variable_number(const EnvLookup& env, std::string_view name);

}  // namespace ddprun::launcher
