// Virtual time, chance, and what is to happen when: the ground on which a job is simulated. One
// seed gives one course of events.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <queue>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

namespace ddprun::sim {

using Time = std::chrono::steady_clock::time_point;
using std::chrono::milliseconds;

class VirtualTime {
 public:
  explicit VirtualTime(unsigned seed) : random_(seed) {}
  VirtualTime(const VirtualTime&) = delete;
  VirtualTime& operator=(const VirtualTime&) = delete;
  ~VirtualTime() {
    for (const auto& act : at_end_) act();
  }

  Time now() const { return now_; }
  // A number from 0 to below - 1.
  int draw(int below) {
    return below <= 0 ? 0 : static_cast<int>(random_() % static_cast<unsigned>(below));
  }
  bool one_in(int times) { return draw(times) == 0; }
  milliseconds up_to(int most_ms) { return milliseconds(draw(most_ms + 1)); }

  void at(Time time, std::function<void()> act) {
    queue_.push({std::max(time, now_), ++order_, std::move(act)});
  }
  void after(milliseconds delay, std::function<void()> act) { at(now_ + delay, std::move(act)); }

  // When the time is over: for what would keep itself alive.
  void at_end(std::function<void()> act) { at_end_.push_back(std::move(act)); }

  // Lets the next thing happen if it is due by `end`. False if nothing is.
  bool step(Time end) {
    if (queue_.empty() || queue_.top().at > end) return false;
    const Event event = queue_.top();
    queue_.pop();
    now_ = event.at;
    event.act();
    return true;
  }

 private:
  struct Event {
    Time at;
    std::uint64_t order;  // events of one moment happen in the order in which they were set
    std::function<void()> act;
    bool operator>(const Event& other) const {
      return std::tie(at, order) > std::tie(other.at, other.order);
    }
  };

  std::mt19937 random_;
  Time now_ = Time{} + std::chrono::hours(1);
  std::uint64_t order_ = 0;
  std::vector<std::function<void()>> at_end_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> queue_;
};

// A clock that need not run as fast as the virtual time.
class Clock {
 public:
  Clock(Time began, double rate) : began_(began), rate_(rate) {}

  Time local(Time time) const { return scaled(time, rate_); }
  // Rounded up: a timer never fires before its time.
  Time global(Time time) const { return scaled(time, 1 / rate_) + std::chrono::microseconds(1); }

 private:
  Time scaled(Time time, double rate) const {
    const std::chrono::duration<double, std::nano> since = time - began_;
    return began_ + std::chrono::nanoseconds(static_cast<std::int64_t>(since.count() * rate));
  }

  Time began_;
  double rate_;
};

}  // namespace ddprun::sim
