#include "rendezvous/core/inquiry.h"

#include <algorithm>

namespace ddprun::rendezvous {
namespace {

bool answers(const Member& member) {
  return member.in_round() && member.listens() && member.entrant.spec.answers_looks;
}

// A group with a rank that nobody has says nothing.
void drop_strange_groups(RankEvidence& evidence, int world_size) {
  std::erase_if(evidence.groups, [world_size](const GroupPosition& group) {
    return std::ranges::any_of(group.ranks,
                               [world_size](int rank) { return rank < 0 || rank >= world_size; });
  });
}

}  // namespace

std::optional<Announcement> Inquiry::suspected(SessionId from, std::int64_t round,
                                               const Membership& membership, Time now) {
  if (is_open() || (opened_at_ && now < *opened_at_ + kInquiryEvery)) return std::nullopt;
  if (membership.phase() != Membership::Phase::kRunning || round != membership.round_number())
    return std::nullopt;
  const Member* const member = membership.members().find(from);
  if (member == nullptr || !answers(*member)) return std::nullopt;
  opened_at_ = now;
  ends_at_ = now + kInquiryLimit;
  round_ = round;
  ++number_;
  if (!summon(membership)) {
    end();
    return std::nullopt;
  }
  return Announcement{sessions(), Look{round_, number_}};
}

// Returns false if the ranks of the nodes are not known.
bool Inquiry::summon(const Membership& membership) {
  const std::vector<const Member*> by_seat = membership.members().by_seat();
  if (by_seat.empty()) return false;
  world_size_ = 0;
  awaited_ = 0;
  for (const Member* const member : by_seat) {
    const Ranks ranks{world_size_, member->entrant.spec.local_world_size};
    world_size_ += ranks.count;
    if (!answers(*member)) continue;
    nodes_.emplace(member->session(), ranks);
    awaited_ += static_cast<std::size_t>(ranks.count);
  }
  return true;
}

std::optional<Announcement> Inquiry::answered(SessionId from, std::int64_t round,
                                              std::int64_t inquiry,
                                              std::vector<RankEvidence> evidence) {
  if (!is_open() || round != round_ || inquiry != number_) return std::nullopt;
  const auto node = nodes_.find(from);
  if (node == nodes_.end()) return std::nullopt;
  for (RankEvidence& one : evidence) {
    if (!node->second.holds(one.rank)) continue;
    drop_strange_groups(one, world_size_);
    const int rank = one.rank;
    evidence_.try_emplace(rank, std::move(one));
  }
  if (evidence_.size() < awaited_) return std::nullopt;
  return conclude();
}

void Inquiry::follow(const Membership& membership) {
  const bool runs =
      membership.phase() == Membership::Phase::kRunning && membership.round_number() == round_;
  if (is_open() && !runs) end();
}

std::optional<Announcement> Inquiry::tick(Time now) {
  if (!is_open() || now < ends_at_) return std::nullopt;
  return conclude();
}

std::vector<SessionId> Inquiry::sessions() const {
  std::vector<SessionId> all;
  all.reserve(nodes_.size());
  for (const auto& [session, ranks] : nodes_) all.push_back(session);
  return all;
}

Announcement Inquiry::conclude() {
  std::vector<RankEvidence> evidence;
  evidence.reserve(evidence_.size());
  for (auto& [rank, one] : evidence_) evidence.push_back(std::move(one));
  StandstillVerdict told{round_, number_, judge_(std::move(evidence), world_size_)};
  std::vector<int>& blamed = told.verdict.ranks;
  blamed.resize(std::min(blamed.size(), kMostVerdictRanks));
  Announcement announcement{sessions(), std::move(told)};
  end();
  return announcement;
}

void Inquiry::end() {
  ends_at_ = Time::max();
  nodes_.clear();
  evidence_.clear();
}

}  // namespace ddprun::rendezvous
