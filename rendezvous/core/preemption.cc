#include "rendezvous/core/preemption.h"

#include <algorithm>
#include <utility>

namespace ddprun::rendezvous {
namespace {

constexpr std::chrono::milliseconds kAllLimits = kMoreNotices + 2 * kStepAnswerLimit;

}  // namespace

std::optional<Announcement> Preemption::noticed(SessionId from, const Notice& notice,
                                                const Membership& membership, Time now,
                                                bool is_host) {
  if (notice.round != membership.round_number() || !begin(membership)) return std::nullopt;
  const auto node = nodes_.find(from);
  if (node == nodes_.end()) {
    if (state_ == State::kQuiet) end();
    return std::nullopt;
  }
  if (notice.is_end) noticed_.insert(from);
  host_is_noticed_ |= notice.is_end && is_host;
  if (state_ != State::kQuiet) {
    if (notice.is_end && !order_.is_end) order_.hostname = node->second;
    return merge(notice, now);
  }
  order_ = {.round = notice.round,
            .signo = notice.signo,
            .is_end = notice.is_end,
            .hostname = node->second};
  kill_at_ = now + notice.deadline;
  if (!notice.is_end || !goes_on_without_noticed()) return seek(now);
  state_ = State::kCollecting;
  look_at_ = end_of(kMoreNotices, now);
  return std::nullopt;
}

std::optional<Announcement> Preemption::wanted(const Notice& notice, const Membership& membership,
                                               Time now) {
  if (!is_quiet() || !begin(membership)) return std::nullopt;
  order_ = {.round = membership.round_number(), .signo = notice.signo, .is_end = notice.is_end};
  kill_at_ = now + notice.deadline;
  return seek(now);
}

// Returns false if no round runs, or it is told to end already.
bool Preemption::begin(const Membership& membership) {
  const bool runs = membership.phase() == Membership::Phase::kRunning;
  if (!runs || membership.round_number() == is_over_in_) return false;
  if (state_ != State::kQuiet) return true;
  end();
  policy_ = membership.policy();
  membership.members().for_each([this](const Member& member) {
    if (!member.in_round()) return;
    ++nodes_in_round_;
    const bool takes = member.listens() && member.entrant.spec.takes_step_orders;
    if (takes) nodes_.emplace(member.session(), member.entrant.spec.hostname);
    has_older_ = has_older_ || !takes;
  });
  return true;
}

// The sooner deadline holds for all.
std::optional<Announcement> Preemption::merge(const Notice& notice, Time now) {
  if (!notice.is_end) return std::nullopt;
  kill_at_ = order_.is_end ? std::min(kill_at_, now + notice.deadline) : now + notice.deadline;
  if (!std::exchange(order_.is_end, true)) order_.signo = notice.signo;
  if (state_ == State::kCollecting && !goes_on_without_noticed()) return seek(now);
  return std::nullopt;
}

bool Preemption::goes_on_without_noticed() const {
  const int rest = nodes_in_round_ - static_cast<int>(noticed_.size());
  return !host_is_noticed_ && rest > 0 && usable_nodes(rest, policy_) >= policy_.min_nodes;
}

std::optional<Announcement> Preemption::seek(Time now) {
  if (has_older_) return take(0, now);
  state_ = State::kAsking;
  return send(StepStage::kAsk, now);
}

// A sixteenth of the time is for the way between the nodes.
Time Preemption::end_of(std::chrono::milliseconds limit, Time now) const {
  const auto left = std::chrono::floor<std::chrono::milliseconds>(kill_at_ - now);
  const auto most = std::max(order_limit(left) * 15 / 16, std::chrono::milliseconds(0));
  const bool is_short = order_.is_end && most < kAllLimits;
  return now + (is_short ? limit * most.count() / kAllLimits.count() : limit);
}

std::optional<Announcement> Preemption::send(StepStage stage, Time now) {
  steps_.clear();
  order_.stage = stage;
  order_.number = ++number_;
  order_.deadline = std::max(std::chrono::ceil<std::chrono::milliseconds>(kill_at_ - now),
                             std::chrono::milliseconds(0));
  look_at_ = end_of(kStepAnswerLimit, now);
  Announcement announcement{{}, order_};
  for (const auto& [session, hostname] : nodes_) announcement.to.push_back(session);
  return announcement;
}

std::optional<Announcement> Preemption::answered(SessionId from, const StepAnswer& answer,
                                                 Time now) {
  const bool waits = state_ == State::kAsking || state_ == State::kHolding;
  if (!waits || answer.number != order_.number || answer.round != order_.round) return std::nullopt;
  if (!nodes_.contains(from)) return std::nullopt;
  steps_.try_emplace(from, std::clamp<std::int64_t>(answer.steps, 0, kMostSteps));
  if (steps_.size() < nodes_.size()) return std::nullopt;
  std::int64_t most = 0;
  for (const auto& [session, steps] : steps_) most = std::max(most, steps);
  if (state_ == State::kHolding && most < order_.step) return take(order_.step, now);
  if (state_ == State::kHolding) ahead_ *= 2;
  if (most == 0 || most == kMostSteps || ahead_ > kMostStepsAhead) return take(0, now);
  state_ = State::kHolding;
  order_.step = most + ahead_;
  return send(StepStage::kHold, now);
}

Announcement Preemption::take(std::int64_t step, Time now) {
  order_.step = step;
  Announcement announcement = *send(StepStage::kTake, now);
  if (order_.is_end) is_over_in_ = order_.round;
  end();
  return announcement;
}

// The round breaks when they leave, and goes on without them. A later notice is one to that round.
Announcement Preemption::end_noticed(Time now) {
  Announcement announcement = *send(StepStage::kTake, now);
  std::erase_if(announcement.to, [this](SessionId id) { return !noticed_.contains(id); });
  end();
  return announcement;
}

std::optional<Announcement> Preemption::tick(Time now) {
  if (now < look_at_) return std::nullopt;
  if (state_ == State::kCollecting) return end_noticed(now);
  if (state_ != State::kAsking || order_.is_end) return take(0, now);
  // Ranks are on their way to the step of a checkpoint before. At once would be before that.
  end();
  return std::nullopt;
}

void Preemption::follow(const Membership& membership) {
  const bool runs = membership.phase() == Membership::Phase::kRunning &&
                    membership.round_number() == order_.round;
  if (!is_quiet() && !runs) end();
}

void Preemption::end() {
  state_ = State::kQuiet;
  look_at_ = Time::max();
  nodes_.clear();
  has_older_ = false;
  nodes_in_round_ = 0;
  noticed_.clear();
  host_is_noticed_ = false;
  steps_.clear();
  ahead_ = kFirstStepsAhead;
}

}  // namespace ddprun::rendezvous
