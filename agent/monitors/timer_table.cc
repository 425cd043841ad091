#include "agent/monitors/timer_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>

namespace ddprun::agent {
namespace {

using Json = nlohmann::json;

Error bad(std::string_view why) {
  return {ErrorCode::kInvalidArgument,
          fmt::format("watchdog: a request is not understood: {}", why)};
}

// The value, if it is a whole number that fits into an int and is not negative. A fraction or 1e300
// is no pid and no signal; get<int>() would make one of it.
std::optional<int> whole_number(const Json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  constexpr auto kMost = std::numeric_limits<int>::max();
  // Compared in its own type: a number above 2^63 would turn negative as a signed one.
  const bool too_much = value.is_number_unsigned() ? value.get<std::uint64_t>() > kMost
                                                   : value.get<std::int64_t>() < 0;
  return too_much ? std::nullopt : std::optional(value.get<int>());
}

// One line of a worker. It asks for a deadline, or releases one.
struct Request {
  std::pair<int, std::string> key;
  double at;
  int signo;  // means nothing if the deadline is released

  bool is_release() const { return at < 0; }
};

Result<int> read_signal(const Json& request) {
  const auto signo = whole_number(request.value("signal", Json(SIGKILL)));
  if (!signo || *signo == 0 || *signo >= NSIG) return bad("its signal is no signal");
  return *signo;
}

Result<Request> read_request(std::string_view line) {
  const Json request = Json::parse(line, nullptr, false);
  if (request.is_discarded() || !request.is_object()) return bad("it is no JSON object");
  const auto is_number = [&](const char* key) {
    return request.contains(key) && request.at(key).is_number();
  };
  if (!is_number("version") || request.at("version") != 1) return bad("its version is not 1");
  // A request may not name a process group (0) or init (1) as the process to kill (kill(2)).
  const auto pid = whole_number(request.value("pid", Json()));
  if (!pid || *pid <= 1) return bad("it names no pid");
  if (!is_number("expiration_time")) return bad("it has no expiration_time");
  // Any value names a deadline, as in torch. Its JSON text stands for one that is no string.
  const Json scope = request.value("scope_id", Json(""));
  Request read{.key = {*pid, scope.is_string() ? scope.get<std::string>() : scope.dump()},
               .at = request.at("expiration_time").get<double>(),
               .signo = 0};
  // torch's client releases with signal 0.
  if (read.is_release()) return read;
  const auto signo = read_signal(request);
  if (!signo) return signo.error();
  read.signo = *signo;
  return read;
}

}  // namespace

Result<void> TimerTable::apply(std::string_view line) {
  const auto request = read_request(line);
  if (!request) return request.error();
  const auto& [key, at, signo] = *request;
  if (request->is_release()) {
    deadlines_.erase(key);
    return {};
  }
  // A deadline that is there already can always be moved.
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

// Looks at all of them: there are few, and they are keyed by process for release and forget().
std::optional<double> TimerTable::next() const {
  const auto earliest =
      std::min_element(deadlines_.begin(), deadlines_.end(),
                       [](const auto& a, const auto& b) { return a.second.at < b.second.at; });
  return earliest == deadlines_.end() ? std::nullopt : std::optional(earliest->second.at);
}

}  // namespace ddprun::agent
