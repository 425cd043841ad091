// Limits how often one thing is logged. Unauthenticated peers can make us refuse them as often as
// they like, and the log must not grow as fast. Logs nothing itself. Pure: the caller passes the
// time. No lock; used by its owner's thread only.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

namespace ddprun {

class RateLimiter {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit RateLimiter(std::chrono::milliseconds at_most_every) : at_most_every_(at_most_every) {}

  // The thing happened again. No value: do not log it. Otherwise log it; the value says how often
  // it happened unlogged since it was logged last.
  std::optional<std::size_t> happened(Time now) {
    if (said_at_ && now - *said_at_ < at_most_every_) {
      ++suppressed_;
      return std::nullopt;
    }
    said_at_ = now;
    return std::exchange(suppressed_, 0);
  }
  // The line to log, or nothing: `text`, and how many like it were not logged.
  std::optional<std::string> line(std::string text, Time now) {
    const auto suppressed = happened(now);
    if (!suppressed) return std::nullopt;
    if (*suppressed > 0) text += " (" + std::to_string(*suppressed) + " more before it)";
    return text;
  }

 private:
  const std::chrono::milliseconds at_most_every_;
  std::optional<Time> said_at_;
  std::size_t suppressed_ = 0;
};

}  // namespace ddprun
