#include "rendezvous/trust/unproven_connections.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/duration.h"

namespace ddprun::rendezvous {

void UnprovenConnections::arrived(Id id, const std::string& address, Wire wire) {
  ended(id);
  waiting_[address].push_back({id, wire});
  ++waiting_count_;
}

void UnprovenConnections::refill(Time now) {
  if (filled_at_ && now > *filled_at_) {
    const double seconds = in_seconds(now - *filled_at_);
    failures_left_ =
        std::min(limits_.failures_at_once, failures_left_ + seconds * limits_.failures_per_second);
    // Those that are served hold a part of it.
    const double free = std::clamp(failures_left_ + earned_, 0.0, earned_);
    if (!was_waited_) earned_ -= std::min(free, seconds * limits_.earned_lost_per_second);
  }
  filled_at_ = now;
}

std::optional<UnprovenConnections::Id> UnprovenConnections::next(Time now) {
  refill(now);
  const auto id = next_of_waiting(now);
  was_waited_ = is_waited();
  return id;
}

std::optional<UnprovenConnections::Id> UnprovenConnections::next_of_waiting(Time now) {
  if (waiting_.empty() || is_full()) return std::nullopt;
  auto address = waiting_.upper_bound(last_address_);
  if (address == waiting_.end()) address = waiting_.begin();
  const auto& queue = address->second;
  const Wire wire = newest_is_next_ ? queue.back().wire : queue.front().wire;
  if (failures_left_ + earned_ < cost_of(wire)) return std::nullopt;
  last_address_ = address->first;
  const Waiting one = take(address);
  failures_left_ -= cost_of(wire);
  const auto place = order_.insert(order_.end(), {one.id, now});
  served_.emplace(one.id, ServedConnection{cost_of(wire), place});
  return one.id;
}

UnprovenConnections::Waiting UnprovenConnections::take(Addresses::iterator address) {
  auto& queue = address->second;
  const bool newest = std::exchange(newest_is_next_, !newest_is_next_);
  const Waiting one = newest ? queue.back() : queue.front();
  newest ? queue.pop_back() : queue.pop_front();
  if (queue.empty()) waiting_.erase(address);
  --waiting_count_;
  return one;
}

// Its turn goes to another one at the same end of the queue.
void UnprovenConnections::was_gone(Id id) {
  newest_is_next_ = !newest_is_next_;
  erase(id, true);
}

void UnprovenConnections::proved(Id id) {
  const auto found = served_.find(id);
  if (found == served_.end()) return;
  if (is_waited()) earned_ = std::min(limits_.earned, earned_ + found->second.cost);
  erase(id, true);
}

void UnprovenConnections::ended(Id id) { erase(id, false); }

void UnprovenConnections::erase(Id id, bool costs_nothing) {
  const auto found = served_.find(id);
  if (found == served_.end()) return;
  const double cost = found->second.cost;
  // A failure is paid with what was earned, as long as there is some.
  const double paid = costs_nothing ? cost : std::min(cost, earned_);
  if (!costs_nothing) earned_ -= paid;
  failures_left_ = std::min(limits_.failures_at_once, failures_left_ + paid);
  order_.erase(found->second.place);
  served_.erase(found);
}

std::vector<UnprovenConnections::Id> UnprovenConnections::forget_waiting(
    const std::function<bool(Id)>& is_gone) {
  std::vector<Id> ids;
  for (auto address = waiting_.begin(); address != waiting_.end();) {
    waiting_count_ -= std::erase_if(address->second, [&](const Waiting& one) {
      if (!is_gone(one.id)) return false;
      ids.push_back(one.id);
      return true;
    });
    address = address->second.empty() ? waiting_.erase(address) : std::next(address);
  }
  return ids;
}

// Takes them from the address that has most of them: others must not suffer for it.
std::vector<UnprovenConnections::Id> UnprovenConnections::too_many() {
  std::vector<Id> ids;
  while (waiting_count_ > limits_.waiting) {
    const auto most = std::ranges::max_element(
        waiting_, {}, [](const auto& address) { return address.second.size(); });
    ids.push_back(most->second.front().id);
    most->second.pop_front();
    if (most->second.empty()) waiting_.erase(most);
    --waiting_count_;
  }
  return ids;
}

std::vector<UnprovenConnections::Id> UnprovenConnections::overdue(Time now) {
  std::vector<Id> ids;
  if (!is_full() || !is_waited()) return ids;
  const auto turn = std::chrono::duration_cast<Time::duration>(
      limits_.turn * (1 + (limits_.earned > 0 ? 3 * earned_ / limits_.earned : 0)));
  while (!order_.empty() && ids.size() < waiting_count_ && order_.front().second + turn <= now) {
    ids.push_back(order_.front().first);
    ended(ids.back());
  }
  return ids;
}

std::vector<UnprovenConnections::Id> UnprovenConnections::served() const {
  std::vector<Id> ids;
  for (const auto& [id, since] : order_) ids.push_back(id);
  return ids;
}

}  // namespace ddprun::rendezvous
