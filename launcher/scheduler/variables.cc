#include "launcher/scheduler/variables.h"

#include "base/numbers.h"

namespace ddprun::launcher {

std::optional<std::int64_t> parse_count(std::string_view text) {
  const auto number = parse_whole<std::int64_t>(text);
  return number && *number >= 0 ? number : std::nullopt;
}

std::string variable_text(const EnvLookup& env, std::string_view name) {
  return name.empty() ? std::string() : env(name).value_or("");
}

std::optional<int> variable_number(const EnvLookup& env, std::string_view name) {
  const auto value = parse_count(variable_text(env, name));
  if (!value || *value > kMaxCount) return std::nullopt;
  return static_cast<int>(*value);
}

}  // namespace ddprun::launcher
