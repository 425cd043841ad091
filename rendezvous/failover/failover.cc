#include "rendezvous/failover/failover.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace ddprun::rendezvous {

// The election looks for the first leader by itself.
FailoverActions Failover::start() {
  if (!is_same_host()) return {};
  host_ = HostState::kConnecting;
  return {OpenSession{}};
}

// ---- what the node says ----

FailoverActions Failover::pass_on() const {
  return takes_words() ? FailoverActions{PassOn{}} : FailoverActions{};
}

// With kSameHost the lease still says how long the host is looked for.
FailoverActions Failover::joined(const NodeSpec& node) {
  memory_.joined(node);
  workers_ = Workers::kNone;
  if (!is_same_host()) {
    workers_until_ = {};
    look_again_at_ = Time::max();
  }
  FailoverActions actions = {EndFencedSession{}};
  if (takes_words()) actions.emplace_back(PassOn{});
  return actions;
}

// Without a host it is said to the next one.
FailoverActions Failover::failed(std::int64_t round, const Failure& failure) {
  memory_.failed(round, failure);
  return pass_on();
}

FailoverActions Failover::succeeded(std::int64_t round) {
  memory_.succeeded(round);
  return pass_on();
}

// The leader may be away, or go before the workers have ended. The next one hears of it, if this
// process lives so long. This node must not be the next one.
FailoverActions Failover::left(const Failure& reason) {
  memory_.left(reason);
  FailoverActions actions = pass_on();
  if (is_same_host()) return actions;
  if (rules_.keeps_workers && host_ != HostState::kLeading && memory_.is_round_whole()) {
    actions.emplace_back(Withdraw{});
    return actions;
  }
  is_over_ = true;
  end_wait(actions);
  actions.emplace_back(EndJob{false});
  return actions;
}

// The leader answers by ending the call. So from now on that is no loss of the leader, and no other
// leader is looked for.
FailoverActions Failover::gone() {
  FailoverActions actions = {EndFencedSession{}};
  if (is_same_host() ? takes_words() : host_ != HostState::kSearching)
    actions.emplace_back(PassOn{});
  if (is_same_host()) return actions;
  look_again_at_ = Time::max();
  end_wait(actions);
  if (!std::exchange(is_over_, true)) actions.emplace_back(EndJob{false});
  return actions;
}

// ---- what the host says ----

FailoverActions Failover::admitted(Time now) {
  return is_same_host() ? admitted_again(now) : admitted_by_leader();
}

FailoverActions Failover::message(const HostMessage& message, Time now) {
  if (!memory_.on_message(message)) return {};
  if (std::holds_alternative<RoundPublished>(message)) workers_ = Workers::kRunning;
  return is_same_host() ? same_host_message(message, now) : elected_message(message, now);
}

// If the round broke before, the agent is told again: workers that still end must not have their
// grace.
void Failover::broken(const RoundBroken& message, FailoverActions& actions) {
  if (memory_.is_round_whole()) memory_.on_message(message);
  actions.emplace_back(Deliver{message});
}

// ---- time ----

FailoverActions Failover::time_passed(Time now) {
  if (now < look_again_at_) return {};
  if (is_same_host()) return look_again(now);
  look_again_at_ = Time::max();
  lost_.is_fenced = true;
  FailoverActions actions;
  break_round(lost_, actions);
  return actions;
}

void Failover::end_wait(FailoverActions& actions) {
  if (std::exchange(waits_, false)) actions.emplace_back(EndWait{});
}

std::optional<Time> Failover::workers_until() const {
  return workers_until_ == Time{} ? std::nullopt : std::optional(workers_until_);
}

Time Failover::gives_up_at() const {
  return has_lease_ended() ? rejoin_until_ : workers_until_ + rules_.rejoin_limit;
}

// The agent tells of a node that joins.
std::string Failover::wait_line(std::chrono::seconds waited, const std::string& why,
                                Time now) const {
  if (!memory_.is_in_round()) return {};
  if (!is_same_host())
    return fmt::format("waiting for {} s for a leader of the rendezvous: {}", waited.count(), why);
  const auto left = std::chrono::ceil<std::chrono::seconds>(limit() - now);
  return fmt::format("waiting for {} s for the host to let this node in again: {}; {} {} s",
                     waited.count(), why,
                     has_lease_ended() ? "giving up in" : "the workers go on for",
                     std::max<std::int64_t>(left.count(), 0));
}

}  // namespace ddprun::rendezvous
