#include "rendezvous/core/session_memory.h"

#include <variant>

namespace ddprun::rendezvous {

void SessionMemory::joined(const NodeSpec& node) {
  has_joined_ = true;
  is_in_round_ = false;
  failure_.reset();
  resumed_.spec = node;
  resumed_.state = NodeState::kJoining;
}

void SessionMemory::failed(std::int64_t round, const Failure& failure) {
  const bool counts = is_round_whole() || (is_in_round_ && failure.ends_job);
  if (counts && round == resumed_.round) failure_ = failure;
}

void SessionMemory::succeeded(std::int64_t round) {
  if (is_round_whole() && round == resumed_.round) resumed_.state = NodeState::kSucceeded;
}

bool SessionMemory::on_message(const HostMessage& message) {
  if (const auto* published = std::get_if<RoundPublished>(&message)) {
    if (published->round.number <= resumed_.round) return false;
    is_in_round_ = true;
    failure_.reset();
    resumed_.round = published->round.number;
    resumed_.node_count = published->round.node_count;
    resumed_.restarts = published->round.restart_count;
    resumed_.seat = published->seat.node_rank;
    resumed_.spec.strikes = published->round.strikes;
    resumed_.state = NodeState::kRunning;
    resumed_.cause = {};
    resumed_.is_resize = false;
  }
  const auto* const broken = std::get_if<RoundBroken>(&message);
  if (broken == nullptr || broken->round != resumed_.round || !is_in_round_) return true;
  if (failure_ && !failure_->ends_job) failure_.reset();
  resumed_.state = NodeState::kStopping;
  resumed_.cause = broken->cause;
  resumed_.is_resize = broken->is_resize;
  return true;
}

void SessionMemory::replay_to(Session& session) {
  if (!has_joined_) return;
  ++resumed_.connection;
  session.resume(resumed_);
  if (failure_) session.report_failure(resumed_.round, *failure_);
  if (left_) session.leave(*left_);
}

}  // namespace ddprun::rendezvous
