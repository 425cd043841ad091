#include "agent/core/exit_map.h"

#include <fmt/format.h>

#include <algorithm>

#include "agent/core/lifecycle.h"
#include "base/numbers.h"
#include "base/shown_text.h"
#include "base/signal_name.h"
#include "rendezvous/core/progress.h"

namespace ddprun::agent {
namespace {

constexpr std::string_view kSpaces = " \t\r";
constexpr std::string_view kSignal = "signal:";
constexpr std::string_view kExit = "exit:";
constexpr std::size_t kMostShown = 80;  // of a bad entry
constexpr int kLastSignal = 64;
constexpr int kLastCode = 255;
constexpr const char* kAccepted =
    "expected KEY:CODE with a CODE from 0 to 255; a KEY is an exception such as ValueError, "
    "signal:SIGKILL, exit:3, preempted, no-progress, rendezvous, launcher, node, hang, no-restart "
    "or failed";

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

std::optional<int> code_in(std::string_view text, int most) {
  const auto number = parse_whole<int>(text);
  const bool is_code = number && *number >= 0 && *number <= most;
  return is_code ? std::optional<int>(*number) : std::nullopt;
}

bool is_signal_name(std::string_view name) {
  for (int signo = 1; signo <= kLastSignal; ++signo)
    if (signal_name(signo) == name) return true;
  return false;
}

// An exception's name begins with a capital letter, and no word of ours does.
bool is_key(std::string_view key) {
  if (key.starts_with(kSignal)) return is_signal_name(key.substr(kSignal.size()));
  if (key.starts_with(kExit)) return code_in(key.substr(kExit.size()), kLastCode).has_value();
  return std::ranges::find(kExitWords, key) != std::end(kExitWords) ||
         (!key.empty() && rendezvous::exception_of(key) == key);
}

Result<void> add_entry(ExitMap& map, std::string_view entry) {
  const auto colon = entry.rfind(':');
  const std::string_view key =
      colon == std::string_view::npos ? entry : trimmed(entry.substr(0, colon));
  const auto code = colon == std::string_view::npos
                        ? std::nullopt
                        : code_in(trimmed(entry.substr(colon + 1)), kLastCode);
  if (!code || !is_key(key))
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("'{}': {}", shown_text(entry.substr(0, kMostShown)), kAccepted));
  map[std::string(key)] = *code;
  return {};
}

// Calls `each` for every part of `text` between two of `separators`.
template <typename Each>
Result<void> for_parts(std::string_view text, std::string_view separators, Each each) {
  while (true) {
    const auto end = std::min(text.find_first_of(separators), text.size());
    if (auto done = each(text.substr(0, end)); !done) return done;
    if (end == text.size()) return {};
    text.remove_prefix(end + 1);
  }
}

void add_worker_reasons(std::vector<std::string>& reasons, const rendezvous::Failure& cause) {
  if (cause.is_hang) reasons.emplace_back("hang");
  if (const auto exception = rendezvous::exception_of(cause.words);
      cause.exit_code > 0 && !exception.empty())
    reasons.emplace_back(exception);
  if (cause.exit_code < 0)
    reasons.push_back(fmt::format("{}{}", kSignal, signal_name(-cause.exit_code)));
  if (cause.exit_code > 0) reasons.push_back(fmt::format("{}{}", kExit, cause.exit_code));
}

}  // namespace

Result<ExitMap> parse_exit_map(std::string_view text) {
  ExitMap map;
  const auto add = [&map](std::string_view part) -> Result<void> {
    const std::string_view entry = trimmed(part);
    return entry.empty() ? Result<void>() : add_entry(map, entry);
  };
  const auto read = for_parts(text, "\n", [&add](std::string_view line) {
    return for_parts(line.substr(0, line.find('#')), ",", add);
  });
  if (!read) return read.error();
  return map;
}

std::vector<std::string> exit_reasons(const Ending& ending, int max_restarts) {
  if (ending.succeeded || ending.drained) return {};
  if (ending.signal != 0 || ending.stopped) return {"preempted"};
  if (ending.session_error) return {"rendezvous", "node"};
  if (ending.launcher_failed) return {"launcher", "node"};
  if (!ending.cause) return {"failed"};
  const rendezvous::Failure& cause = *ending.cause;
  // Another node left. If it was told to end, none has failed.
  if (cause.rank < 0) return {cause.exit_code < 0 ? "preempted" : "node"};
  std::vector<std::string> reasons;
  if (ending.no_progress) reasons.emplace_back("no-progress");
  add_worker_reasons(reasons, cause);
  if (max_restarts > 0 && !cause.ends_job) reasons.emplace_back("no-restart");
  reasons.emplace_back("failed");
  return reasons;
}

std::optional<int> mapped_code(const ExitMap& map, const Ending& ending, int max_restarts) {
  for (const std::string& reason : exit_reasons(ending, max_restarts))
    if (const auto found = map.find(reason); found != map.end()) return found->second;
  return std::nullopt;
}

}  // namespace ddprun::agent
