#include "agent/report/repeated_deaths.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace ddprun::agent {
namespace {

bool is_of_a_start(const Death& death) { return !death.stepped && death.lived < kLongestStart; }

bool begins_with_one_of(std::string_view line, std::initializer_list<std::string_view> heads) {
  return std::any_of(heads.begin(), heads.end(),
                     [line](std::string_view head) { return line.starts_with(head); });
}

bool has(std::string_view line, std::string_view text) {
  return line.find(text) != std::string_view::npos;
}

}  // namespace

bool cannot_start(const Death& death) {
  if (!is_of_a_start(death)) return false;
  const std::string_view line = death.last_line;
  if (death.exit_code == 1)
    return begins_with_one_of(
               line,
               {"ModuleNotFoundError: ", "SyntaxError: ", "IndentationError: ", "TabError: "}) ||
           (has(line, ": No module named ") && has(line, "python"));
  if (death.exit_code != 2) return false;
  return has(line, ": error: ") || has(line, "Error: No such option") ||
         (has(line, ": can't open file ") && has(line, "[Errno 2]"));
}

bool RepeatedDeaths::continues(const Death& death) const {
  return row_ > 0 && is_of_a_start(death) && is_of_a_start(last_) &&
         death.exit_code == last_.exit_code && death.last_line == last_.last_line;
}

void RepeatedDeaths::add(const Death& death) {
  row_ = continues(death) ? row_ + 1 : 1;
  last_ = death;
  ++total_;
}

bool RepeatedDeaths::is_pointless(const Death& death) const {
  return may_be_pointless() && continues(death);
}

std::string RepeatedDeaths::clause() const {
  if (row_ < 2) return {};
  const std::string which = row_ == total_ ? fmt::format("all {} attempts", row_)
                                           : fmt::format("the last {} attempts", row_);
  const std::string how = last_.last_line.empty() ? "" : fmt::format(": {}", last_.last_line);
  return fmt::format("{} failed in the same way, before a step, with exit code {}{}", which,
                     last_.exit_code, how);
}

}  // namespace ddprun::agent
