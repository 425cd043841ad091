#include "agent/core/standby_plan.h"

#include <algorithm>
#include <utility>

namespace ddprun::agent {

void StandbyPlan::attempt_started(Time now) {
  running_ = true;
  settled_ = false;
  noted_ = 0;
  started_ = last_import_ = now;
  look_at_ = now + kLook;
}

void StandbyPlan::attempt_ended() {
  running_ = false;
  look_at_ = Time::max();
  std::ranges::replace(standbys_, State::kEnded, State::kNone);
}

std::optional<int> StandbyPlan::looked(const std::vector<std::uint64_t>& steps, std::uint64_t noted,
                                       Time now) {
  if (!running_) return std::nullopt;
  if (settled_) {
    const auto rank = warmed_rank();
    const bool is_late = now >= warm_until_;
    look_at_ = rank && !is_late ? warm_until_ : Time::max();
    return is_late ? rank : std::nullopt;
  }
  const bool stepped = std::ranges::all_of(steps, [](std::uint64_t done) { return done > 0; });
  if (std::exchange(noted_, noted) != noted) last_import_ = now;
  settled_ = stepped || now >= last_import_ + kSettled || now >= started_ + kLongestStart;
  look_at_ = settled_ ? Time::max() : now + kLook;
  return std::nullopt;
}

void StandbyPlan::warming(int local_rank, Time now) {
  set(local_rank, State::kWarming);
  warm_until_ = look_at_ = now + kLongestWarming;
}

void StandbyPlan::waits(int local_rank) { set(local_rank, State::kWaiting); }

void StandbyPlan::released(int local_rank) {
  if (standbys_.at(static_cast<std::size_t>(local_rank)) != State::kUnfit)
    set(local_rank, State::kNone);
}

void StandbyPlan::ended(int local_rank) { set(local_rank, State::kEnded); }
void StandbyPlan::unfit(int local_rank) { set(local_rank, State::kUnfit); }

void StandbyPlan::set(int local_rank, State state) {
  standbys_.at(static_cast<std::size_t>(local_rank)) = state;
}

std::optional<int> StandbyPlan::next() const {
  if (!wanted_ || !running_ || !settled_) return std::nullopt;
  if (warmed_rank()) return std::nullopt;
  const auto cold = std::ranges::find(standbys_, State::kNone);
  if (cold == standbys_.end()) return std::nullopt;
  return static_cast<int>(cold - standbys_.begin());
}

std::vector<int> StandbyPlan::missing() const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < standbys_.size(); ++rank) {
    if (standbys_[rank] == State::kNone) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

std::optional<int> StandbyPlan::warmed_rank() const {
  const auto warming = std::ranges::find(standbys_, State::kWarming);
  if (warming == standbys_.end()) return std::nullopt;
  return static_cast<int>(warming - standbys_.begin());
}

bool StandbyPlan::is_waiting(int local_rank) const {
  return standbys_.at(static_cast<std::size_t>(local_rank)) == State::kWaiting;
}

}  // namespace ddprun::agent
