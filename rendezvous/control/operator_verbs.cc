#include "rendezvous/control/operator_verbs.h"

#include <fmt/format.h>

#include <optional>
#include <vector>

#include "base/numbers.h"

namespace ddprun::rendezvous {
namespace {

Error over(const Membership& membership) {
  return {ErrorCode::kRejected, "the job is over already: " + membership.end_text()};
}

// Nothing if the job can be changed now.
std::optional<Error> unchangeable(const Membership& membership) {
  if (membership.ended()) return over(membership);
  if (!membership.recovers()) return std::nullopt;
  return Error(ErrorCode::kUnavailable,
               "a new leader waits for the nodes of the round: say it again in a few seconds");
}

const Member* member_of(const Membership& membership, SessionId session) {
  const Member* found = nullptr;
  membership.members().for_each([&](const Member& member) {
    if (member.session() == session) found = &member;
  });
  return found;
}

// A spare may have had a seat in an earlier round; it is somebody else's now.
bool has_seat(const Member& member) {
  return member.holds_seat() || member.state == MemberState::kLeaving;
}

std::string describe(const Member& member) {
  const std::string& hostname = member.entrant.spec.hostname;
  return has_seat(member) && member.last_seat() >= 0
             ? fmt::format("node {} ({})", member.last_seat(), hostname)
             : hostname;
}

}  // namespace

Result<SessionId> find_node(const Membership& membership, const std::string& name) {
  const std::optional<int> rank = parse_whole<int>(name);
  std::vector<const Member*> with_id;
  std::vector<const Member*> with_rank;
  std::vector<const Member*> with_hostname;
  membership.members().for_each([&](const Member& member) {
    if (!member.listens() && member.state != MemberState::kLeaving) return;
    const NodeSpec& spec = member.entrant.spec;
    if (spec.node_id == name) with_id.push_back(&member);
    if (rank && has_seat(member) && member.last_seat() == *rank) with_rank.push_back(&member);
    if (spec.hostname == name) with_hostname.push_back(&member);
  });
  for (const auto& found : {with_id, with_rank, with_hostname}) {
    if (found.size() == 1) return found.front()->session();
    if (found.size() > 1)
      return Error(
          ErrorCode::kInvalidArgument,
          fmt::format("{} nodes are {}: name one by its node rank or id", found.size(), name));
  }
  return Error(ErrorCode::kNotFound,
               fmt::format("no node of the job has the node rank, hostname or id {}", name));
}

Result<Outcome> drain(Membership& membership, SessionId session, std::chrono::milliseconds deadline,
                      Time now) {
  if (auto error = unchangeable(membership)) return *std::move(error);
  const Member* const member = member_of(membership, session);
  if (member != nullptr && member->state == MemberState::kLeaving)
    return Outcome{.deliveries = {{session, Drain{deadline}}}};
  if (member == nullptr || !member->listens())
    return Error(ErrorCode::kNotFound, "the node is not in the job any more");
  const std::string who = describe(*member);
  if (member->state == MemberState::kSucceeded)
    return Error(ErrorCode::kRejected, fmt::format("all workers of {} have succeeded", who));
  const int remain = membership.members().listeners() - 1;
  if (remain < membership.policy().min_nodes)
    return Error(ErrorCode::kRejected,
                 fmt::format("{} cannot be drained: {} node(s) would remain, and the job needs {}",
                             who, remain, membership.policy().min_nodes));
  const Failure reason{.hostname = member->entrant.spec.hostname,
                       .message = fmt::format("an operator drained {}", who)};
  return membership.drained(session, {.deadline = deadline}, reason, now);
}

Result<Outcome> resize(Membership& membership, int min_nodes, int max_nodes, Time now) {
  if (auto error = unchangeable(membership)) return *std::move(error);
  if (min_nodes < 1 || min_nodes > max_nodes || max_nodes > kMaxNodes)
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{}:{} nodes: expected 1 <= MIN <= MAX <= {}", min_nodes, max_nodes,
                             kMaxNodes));
  const int unit = membership.policy().settings.node_unit;
  if (min_nodes % unit != 0 || max_nodes % unit != 0)
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{}:{} nodes: the job's --node-unit is {}, and both must be multiples",
                             min_nodes, max_nodes, unit));
  bool has_claims = false;
  membership.members().for_each([&](const Member& member) {
    const NodeSpec& spec = member.entrant.spec;
    has_claims = has_claims || (spec.node_rank >= 0 && !spec.rank_is_preferred);
  });
  if (has_claims)
    return Error(ErrorCode::kRejected, "the nodes of a job with the static backend are fixed");
  return membership.resized(min_nodes, max_nodes, now);
}

Result<std::string> forgive(Membership& membership, const std::string& name) {
  if (auto error = unchangeable(membership)) return *std::move(error);
  const auto session = find_node(membership, name);
  const bool is_here = session || session.error().code() != ErrorCode::kNotFound;
  if (is_here && !session) return session.error();
  const Member* const member = is_here ? member_of(membership, *session) : nullptr;
  if (!(member != nullptr ? membership.forgive(*member) : membership.forgive(name)))
    return Error(ErrorCode::kNotFound, fmt::format("node {} has no strikes", name));
  return fmt::format("node {} has no strikes any more", name);
}

Result<Outcome> stop(Membership& membership, const std::string& by, Time now) {
  if (membership.ended()) return over(membership);
  const std::string who = by.empty() ? std::string("an operator") : by;
  return membership.stopped(
      {.succeeded = false, .cause = {.message = who + " stopped the job"}, .is_stopped = true},
      now);
}

}  // namespace ddprun::rendezvous
