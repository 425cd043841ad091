#include "rendezvous/core/recovery.h"

#include <algorithm>
#include <utility>

namespace ddprun::rendezvous {

JobRecord remembered(const ResumeRequest& node) {
  const NodeSpec& spec = node.spec;
  return {.round = node.round,
          .restarts = node.restarts,
          .rules = {.max_restarts = spec.max_restarts,
                    .window = spec.restart_window,
                    .backoff = spec.backoff,
                    .backoff_max = spec.backoff_max,
                    .most_without_progress = spec.most_without_progress},
          .others = node.node_count,
          .is_remembered = true};
}

bool Recovery::begin(const RecoveryLimits& limits, Time now) {
  if (!is_open_ || std::exchange(has_begun_, true)) return false;
  workers_until_ = now + limits.workers;
  nodes_until_ = now + std::max(limits.workers, limits.nodes);
  return true;
}

void Recovery::close() {
  is_open_ = false;
  unknown_.clear();
}

bool Recovery::take(std::int64_t round, int seat, int node_count) {
  if (!is_open_ || round != record_.round || node_count != record_.node_count()) return false;
  if (seat < 0 || seat >= node_count) return false;
  return taken_.insert(seat).second;
}

}  // namespace ddprun::rendezvous
