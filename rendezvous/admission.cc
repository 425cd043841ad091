#include "rendezvous/admission.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace ddprun::rendezvous {
namespace {

// As --nnodes has it: "2" or "2:4".
std::string node_range(int min, int max) {
  return min == max ? fmt::format("{}", min) : fmt::format("{}:{}", min, max);
}

}  // namespace

bool differs(const NodeSpec& spec, const RoundPolicy& policy) {
  return spec.max_nodes != 0 &&
         (spec.min_nodes != policy.min_nodes || spec.max_nodes != policy.max_nodes);
}

std::optional<Error> objection(SessionId session, const NodeSpec& spec, const RoundPolicy& policy,
                               const Members& members) {
  if (differs(spec, policy))
    return Error(ErrorCode::kRejected,
                 fmt::format("rendezvous: {} was started with --nnodes={}, the job's host with "
                             "--nnodes={}: all nodes must be given the same",
                             spec.hostname, node_range(spec.min_nodes, spec.max_nodes),
                             node_range(policy.min_nodes, policy.max_nodes)));
  if (spec.local_world_size < 1 || spec.local_world_size > kMaxLocalWorldSize)
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("rendezvous: a node with {} workers: expected 1 to {}",
                             spec.local_world_size, kMaxLocalWorldSize));
  if (!spec.rank_is_wish && (spec.node_rank < -1 || spec.node_rank >= policy.max_nodes))
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("rendezvous: node rank {} is out of range: the job has {} node(s), "
                             "their ranks are 0 to {}",
                             spec.node_rank, policy.max_nodes, policy.max_nodes - 1));
  // The newcomer is one of `members` already.
  if (members.size() > kMaxMembers)
    return Error(ErrorCode::kLimit, fmt::format("rendezvous: more than {} nodes", kMaxMembers));
  // With equal ids two nodes could not be told apart; with equal ranks they would need one seat.
  const Member* const same_id = members.holder_of_id(spec.node_id);
  if (same_id != nullptr && same_id->session() != session)
    return Error(ErrorCode::kRejected, fmt::format("rendezvous: node id {} is here already ({})",
                                                   spec.node_id, same_id->entrant.spec.hostname));
  if (spec.rank_is_wish) return std::nullopt;
  const Member* const same_rank = members.holder_of_rank(spec.node_rank);
  if (same_rank != nullptr && same_rank->session() != session)
    return Error(ErrorCode::kRejected,
                 fmt::format("rendezvous: node rank {} is taken already by {}", spec.node_rank,
                             same_rank->entrant.spec.hostname));
  return std::nullopt;
}

RestartRules common_rules(const std::vector<const Entrant*>& entrants,
                          std::vector<std::string>& notes) {
  const auto [at_least, at_most] = std::ranges::minmax_element(
      entrants, {}, [](const Entrant* entrant) { return entrant->spec.max_restarts; });
  const NodeSpec& least = (*at_least)->spec;
  const NodeSpec& most = (*at_most)->spec;
  if (least.max_restarts != most.max_restarts)
    notes.push_back(fmt::format(
        "rendezvous: the nodes differ in max_restarts ({} says {}, {} says {}): the "
        "smallest, {}, holds for the job",
        least.hostname, least.max_restarts, most.hostname, most.max_restarts, least.max_restarts));
  const NodeSpec& first = entrants.front()->spec;
  return {.max_restarts = least.max_restarts,
          .window = first.restart_window,
          .backoff = first.backoff,
          .backoff_max = first.backoff_max};
}

}  // namespace ddprun::rendezvous
