// How often one thing may be said: strangers can make us refuse as often as they like, and the log
// must not grow with it. Pure; the caller brings the time.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <utility>

namespace ddprun::rendezvous {

class RateLimiter {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit RateLimiter(std::chrono::milliseconds at_most_every) : at_most_every_(at_most_every) {}

  // It happened again. Nothing: do not say it. Else how often it happened unsaid since it was last
  // said.
  std::optional<std::size_t> happened(Time now) {
    if (said_at_ && now - *said_at_ < at_most_every_) {
      ++unsaid_;
      return std::nullopt;
    }
    said_at_ = now;
    return std::exchange(unsaid_, 0);
  }

 private:
  const std::chrono::milliseconds at_most_every_;
  std::optional<Time> said_at_;
  std::size_t unsaid_ = 0;
};

}  // namespace ddprun::rendezvous
