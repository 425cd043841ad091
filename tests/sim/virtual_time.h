// Virtual time, chance, and what is to happen when: the ground on which a job is simulated. One seed
// gives one course of events.
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

  // Lets the next thing happen if it is due by `end`. False: nothing is.
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
  std::priority_queue<Event, std::vector<Event>, std::greater<>> queue_;
};

}  // namespace ddprun::sim
