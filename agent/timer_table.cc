#include "agent/timer_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>

namespace ddprun::agent {
namespace {

using Json = nlohmann::json;

Error bad(std::string_view why) {
  return {ErrorCode::kInvalidArgument,
          fmt::format("watchdog: a request is not understood: {}", why)};
}

}  // namespace

Result<void> TimerTable::apply(std::string_view line) {
  const Json request = Json::parse(line, nullptr, false);
  if (request.is_discarded() || !request.is_object()) return bad("it is no JSON object");
  const auto is_number = [&](const char* key) {
    return request.contains(key) && request.at(key).is_number();
  };
  if (!is_number("version") || request.at("version") != 1) return bad("its version is not 1");
  if (!is_number("pid") || request.at("pid").get<double>() <= 1) return bad("it names no pid");
  if (!is_number("expiration_time")) return bad("it has no expiration_time");
  const double at = request.at("expiration_time").get<double>();
  const int pid = request.at("pid").get<int>();
  const Json scope = request.value("scope_id", Json(""));
  const std::pair key{pid, scope.is_string() ? scope.get<std::string>() : scope.dump()};
  if (at < 0) {
    deadlines_.erase(key);
    return {};
  }
  const int signo = is_number("signal") ? request.at("signal").get<int>() : SIGKILL;
  if (signo <= 0 || signo >= NSIG) return bad("its signal is no signal");
  if (deadlines_.size() >= kMaxTimers && !deadlines_.contains(key))
    return bad(fmt::format("there are {} deadlines already", kMaxTimers));
  deadlines_[key] = {at, signo};
  return {};
}

std::vector<ExpiredTimer> TimerTable::take_expired(double now) {
  std::vector<ExpiredTimer> expired;
  for (const auto& [key, deadline] : deadlines_) {
    if (deadline.at <= now) expired.push_back({key.first, key.second, deadline.signo});
  }
  std::erase_if(deadlines_, [now](const auto& entry) { return entry.second.at <= now; });
  return expired;
}

void TimerTable::forget(int pid) {
  std::erase_if(deadlines_, [pid](const auto& entry) { return entry.first.first == pid; });
}

std::optional<double> TimerTable::next() const {
  const auto earliest =
      std::min_element(deadlines_.begin(), deadlines_.end(),
                       [](const auto& a, const auto& b) { return a.second.at < b.second.at; });
  return earliest == deadlines_.end() ? std::nullopt : std::optional(earliest->second.at);
}

}  // namespace ddprun::agent
