#include "rendezvous/core/members.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/assert.h"

namespace ddprun::rendezvous {

std::string_view name_of(MemberState state) {
  switch (state) {
    case MemberState::kSpare:
      return "spare";
    case MemberState::kWaiting:
      return "waiting";
    case MemberState::kRunning:
      return "running";
    case MemberState::kSucceeded:
      return "succeeded";
    case MemberState::kStopping:
    case MemberState::kDisbelieved:
      return "stopping";
    case MemberState::kLeaving:
      return "leaving";
    case MemberState::kDismissed:
      return "dismissed";
  }
  return "unknown";
}

// No worker is to blame, so rank and exit code keep their defaults.
Failure lost_node(const Member& member, const std::string& how) {
  const std::string& hostname = member.entrant.spec.hostname;
  return {.hostname = hostname,
          .message = fmt::format("node {} ({}) was lost: {}", member.last_seat(), hostname, how),
          .fault = NodeFault::kLost};
}

Member* Members::find(SessionId session) {
  const auto found = members_.find(session);
  return found == members_.end() ? nullptr : &found->second;
}

const Member* Members::find(SessionId session) const {
  const auto found = members_.find(session);
  return found == members_.end() ? nullptr : &found->second;
}

Member& Members::add(SessionId session) {
  const auto [added, is_new] = members_.try_emplace(session);
  DDPRUN_ASSERT(is_new);
  Member& member = added->second;
  member.entrant.session = session;
  member.arrival = ++arrivals_;
  ++counts_[index(member.state)];
  spares_.emplace(member.arrival, &member);
  return member;
}

void Members::erase(Member& member) {
  drop_claims(member);
  spares_.erase(member.arrival);
  --counts_[index(member.state)];
  if (member.gone) --gone_;
  members_.erase(member.session());
}

void Members::erase_gone() {
  if (gone_ == 0) return;
  for (Member* const member : by_arrival(MemberState::kSucceeded))
    if (member->gone) erase(*member);
}

void Members::set_spec(Member& member, const NodeSpec& spec, const PeerInfo& observed) {
  drop_claims(member);
  member.entrant.spec = spec;
  member.entrant.observed = observed;
  by_id_.emplace(spec.node_id, &member);
  if (spec.node_rank >= 0 && !spec.rank_is_preferred) by_rank_.emplace(spec.node_rank, &member);
}

void Members::set_state(Member& member, MemberState state) {
  --counts_[index(member.state)];
  ++counts_[index(state)];
  if (state == MemberState::kSpare) {
    spares_.emplace(member.arrival, &member);
  } else {
    spares_.erase(member.arrival);
  }
  member.state = state;
  if (!member.listens()) drop_claims(member);
}

void Members::set_gone(Member& member) {
  DDPRUN_ASSERT(!member.gone);
  member.gone = true;
  ++gone_;
  drop_claims(member);
}

const Member* Members::holder_of_id(const std::string& node_id) const {
  const auto found = by_id_.find(node_id);
  return found == by_id_.end() ? nullptr : found->second;
}

const Member* Members::holder_of_rank(int node_rank) const {
  const auto found = by_rank_.find(node_rank);
  return found == by_rank_.end() ? nullptr : found->second;
}

std::string Members::missing_ranks(int ranks) const {
  if (ranks > kMissingSearched || by_rank_.empty()) return {};
  std::vector<int> missing;
  for (int rank = 0; rank < ranks && missing.size() <= kMissingShown; ++rank)
    if (holder_of_rank(rank) == nullptr) missing.push_back(rank);
  const bool more = missing.size() > kMissingShown;
  if (more) missing.pop_back();
  return fmt::format("{}{}", fmt::join(missing, ", "), more ? ", …" : "");
}

Member* Members::first_spare() { return spares_.empty() ? nullptr : spares_.begin()->second; }

std::vector<const Member*> Members::by_seat() const {
  std::map<int, const Member*> seats;
  for_each([&seats](const Member& member) {
    if (member.in_round()) seats.emplace(member.last_seat(), &member);
  });
  if (seats.empty() || seats.rbegin()->first + 1 != std::ssize(seats)) return {};
  std::vector<const Member*> members;
  members.reserve(seats.size());
  for (const auto& [seat, member] : seats) members.push_back(member);
  return members;
}

std::vector<Member*> Members::by_arrival(MemberState state) {
  std::vector<Member*> found;
  found.reserve(static_cast<std::size_t>(count(state)));
  for (auto& [session, member] : members_)
    if (member.state == state) found.push_back(&member);
  std::ranges::sort(found, {}, &Member::arrival);
  return found;
}

// Another node may have the id and the rank now.
void Members::drop_claims(const Member& member) {
  const NodeSpec& spec = member.entrant.spec;
  if (holder_of_id(spec.node_id) == &member) by_id_.erase(spec.node_id);
  if (holder_of_rank(spec.node_rank) == &member) by_rank_.erase(spec.node_rank);
}

}  // namespace ddprun::rendezvous
