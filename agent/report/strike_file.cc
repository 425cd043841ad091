#include "agent/report/strike_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <string_view>
#include <utility>

#include "agent/report/record_file.h"
#include "base/limit_hint.h"
#include "base/numbers.h"
#include "rendezvous/core/strikes.h"

namespace ddprun::agent {
namespace {

constexpr std::string_view kFirstWord = "ddprun-strikes ";

std::int64_t unix_seconds() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(since).count();
}

}  // namespace

Result<void> StrikeFile::read(const rendezvous::StrikeRules& rules) {
  if (path_.empty()) return {};
  const auto error = [this](std::string_view why) {
    return Error(ErrorCode::kInvalidArgument, fmt::format("--strike-file={}: {}", path_, why));
  };
  if (const auto can = can_write_record(path_); !can) return error(can.error().message());
  std::ifstream file(path_);
  if (!file && errno == ENOENT) return {};
  if (!file) return error(describe_errno(errno));
  std::string text(rendezvous::kMostStrikesText + 64, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.empty()) return {};  // it was just made
  const std::size_t end = std::min(text.find('\n'), text.size());
  const std::string_view first = std::string_view(text).substr(0, end);
  const auto written = parse_whole<std::int64_t>(
      first.starts_with(kFirstWord) ? first.substr(kFirstWord.size()) : std::string_view());
  if (!written) return error("line 1: expected ddprun-strikes and the seconds since 1970");
  // A clock that was set back makes no strike younger than now.
  const auto age = std::chrono::seconds(
      std::clamp<std::int64_t>(unix_seconds() - *written, 0, 10LL * 365 * 24 * 3600));
  const auto now = std::chrono::steady_clock::now();
  rendezvous::Strikes strikes;
  strikes.set_rules(rules);
  if (const auto added = strikes.add(text.substr(std::min(end + 1, text.size())), now - age);
      !added)
    return error(added.error().message());
  strikes.forget_old(now);
  text_ = strikes.text(now);
  return {};
}

Result<void> StrikeFile::keep(const std::string& text) {
  const bool is_same = text.empty() && text_.empty();
  text_ = text;
  if (path_.empty() || is_same) return {};
  const auto written =
      write_record(path_, fmt::format("{}{}\n{}", kFirstWord, unix_seconds(), text));
  if (!written)
    return Error(ErrorCode::kSystem,
                 fmt::format("--strike-file={}: {}", path_, written.error().message()));
  return {};
}

}  // namespace ddprun::agent
