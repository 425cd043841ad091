// When to tell people of a wait that goes on. It is after 5 s, then 10, 20, 40 … 300 s later each
// time. A log file shows that something is awaited, and is not filled by it. Pure. Owned by who
// waits.
#pragma once

#include <algorithm>
#include <chrono>

namespace ddprun {

class WaitSchedule {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::seconds kFirstNotice{5};
  static constexpr std::chrono::seconds kFirstPause{10};
  static constexpr std::chrono::seconds kLongestPause{300};

  void begin(Time now) {
    since_ = now;
    due_ = now + kFirstNotice;
    pause_ = kFirstPause;
  }
  void end() { due_ = Time::max(); }
  bool is_waiting() const { return due_ != Time::max(); }
  // When is_due() answers true next. Time::max(): nothing is awaited.
  Time look_again_at() const { return due_; }
  // Returns whether to tell of the wait now. After a true the next one comes a pause later.
  bool is_due(Time now) {
    if (now < due_) return false;
    due_ = now + pause_;
    pause_ = std::min(2 * pause_, kLongestPause);
    return true;
  }
  std::chrono::seconds waited(Time now) const {
    return std::chrono::duration_cast<std::chrono::seconds>(now - since_);
  }

 private:
  Time since_{};
  Time due_ = Time::max();
  std::chrono::seconds pause_ = kFirstPause;
};

}  // namespace ddprun
