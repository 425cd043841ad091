#include "rendezvous/core/admission.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace ddprun::rendezvous {
namespace {

// Writes it as --nnodes has it: "2" or "2:4".
std::string node_range(int min, int max) {
  return min == max ? fmt::format("{}", min) : fmt::format("{}:{}", min, max);
}

// A user who mistyped is helped by the host's log, which both of them can ask for.
constexpr const char* kAskTheOwner = "; the host's log says more: ask who started the job there";

JoinRefusal wrong_size(const NodeSpec& spec, const RoundPolicy& policy) {
  const std::string own = node_range(spec.min_nodes, spec.max_nodes);
  const std::string all = "all nodes must be given the same";
  return {
      Error(ErrorCode::kRejected,
            fmt::format("rendezvous: {} was started with --nnodes={}, the job's host with "
                        "--nnodes={}: {}",
                        spec.hostname, own, node_range(policy.min_nodes, policy.max_nodes), all)),
      Error(ErrorCode::kRejected,
            fmt::format("rendezvous: {} was started with --nnodes={}, and the job's host "
                        "otherwise: {}{}",
                        spec.hostname, own, all, kAskTheOwner)),
      true};
}

JoinRefusal rank_refused(ErrorCode code, int rank, const char* what, const std::string& more) {
  const std::string text = fmt::format("rendezvous: node rank {} {}", rank, what);
  return {Error(code, text + more), Error(code, text + kAskTheOwner), true};
}

}  // namespace

bool differs(const NodeSpec& spec, const RoundPolicy& policy) {
  return spec.max_nodes != 0 &&
         (spec.min_nodes != policy.min_nodes || spec.max_nodes != policy.max_nodes);
}

std::optional<JoinRefusal> validate(SessionId session, const NodeSpec& spec,
                                    const RoundPolicy& policy, const Members& members) {
  if (differs(spec, policy)) return wrong_size(spec, policy);
  if (spec.local_world_size < 1 || spec.local_world_size > kMaxLocalWorldSize)
    return JoinRefusal(Error(ErrorCode::kInvalidArgument,
                             fmt::format("rendezvous: a node with {} workers: expected 1 to {}",
                                         spec.local_world_size, kMaxLocalWorldSize)));
  if (!spec.rank_is_preferred && (spec.node_rank < -1 || spec.node_rank >= policy.max_nodes))
    return rank_refused(ErrorCode::kInvalidArgument, spec.node_rank, "is out of range",
                        fmt::format(": the job has {} node(s), their ranks are 0 to {}",
                                    policy.max_nodes, policy.max_nodes - 1));
  // The newcomer is one of `members` already.
  if (members.size() > kMaxMembers)
    return JoinRefusal(
        Error(ErrorCode::kLimit, fmt::format("rendezvous: more than {} nodes", kMaxMembers)));
  // With equal ids two nodes could not be told apart; with equal ranks they would need one seat.
  const Member* const same_id = members.holder_of_id(spec.node_id);
  if (same_id != nullptr && same_id->session() != session) {
    const auto text = fmt::format("rendezvous: node id {} is here already", spec.node_id);
    return JoinRefusal(
        {ErrorCode::kRejected, fmt::format("{} ({})", text, same_id->entrant.spec.hostname)},
        {ErrorCode::kRejected, text}, false);
  }
  if (spec.rank_is_preferred) return std::nullopt;
  const Member* const same_rank = members.holder_of_rank(spec.node_rank);
  if (same_rank == nullptr || same_rank->session() == session) return std::nullopt;
  return rank_refused(ErrorCode::kRejected, spec.node_rank, "is taken already",
                      " by " + same_rank->entrant.spec.hostname);
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
          .backoff_max = first.backoff_max,
          .most_without_progress = first.most_without_progress,
          .strikes = first.strike_rules};
}

}  // namespace ddprun::rendezvous
