#include "rendezvous/grpc/evidence_codec.h"

#include <algorithm>

#include "rendezvous/grpc/codec.h"
#include "rendezvous/grpc/cut_text.h"

namespace ddprun::rendezvous {
namespace {

// Room in a message for all but the ranks.
constexpr std::size_t kFrameBytes = 64;
constexpr std::size_t kRoom = kMaxUpBytes - kFrameBytes;
// A field that is a message: its number, and its length in at most two bytes.
constexpr std::size_t kFieldBytes = 3;
// Numbers without texts: they always travel.
constexpr std::size_t kLeastEvidenceBytes = 32;

std::string short_text(const std::string& text) { return cut(text, kMostEvidenceText); }

std::int64_t decode_count(std::int64_t count) {
  return std::clamp<std::int64_t>(count, 0, kMostRounds);
}

v4::GroupPosition encode_group(const GroupPosition& group) {
  v4::GroupPosition message;
  message.set_name(short_text(group.name));
  if (group.ranks.size() <= kMostGroupRanks)
    message.mutable_ranks()->Add(group.ranks.begin(), group.ranks.end());
  message.set_enqueued(group.enqueued);
  message.set_completed(group.completed);
  message.set_number(group.number);
  message.set_operation(short_text(group.operation));
  message.set_shapes(short_text(group.shapes));
  return message;
}

GroupPosition decode_group(const v4::GroupPosition& message) {
  GroupPosition group{.name = short_text(message.name()),
                      .enqueued = decode_count(message.enqueued()),
                      .completed = decode_count(message.completed()),
                      .number = decode_count(message.number()),
                      .operation = short_text(message.operation()),
                      .shapes = short_text(message.shapes())};
  if (message.ranks_size() <= static_cast<int>(kMostGroupRanks))
    group.ranks.assign(message.ranks().begin(), message.ranks().end());
  return group;
}

// In at most `most` bytes.
v4::RankEvidence encode_rank(const RankEvidence& evidence, std::size_t most) {
  v4::RankEvidence message;
  message.set_rank(evidence.rank);
  message.set_hostname(short_text(evidence.hostname));
  message.set_activity(static_cast<std::int32_t>(evidence.activity));
  message.set_detail(short_text(evidence.detail));
  message.set_place(short_text(evidence.place));
  message.set_steps(evidence.steps);
  for (const GroupPosition& group : evidence.groups) {
    if (message.groups_size() == static_cast<int>(kMostGroups)) break;
    *message.add_groups() = encode_group(group);
  }
  while (message.groups_size() > 0 && message.ByteSizeLong() > most)
    message.mutable_groups()->RemoveLast();
  for (const auto clear : {&v4::RankEvidence::clear_detail, &v4::RankEvidence::clear_hostname,
                           &v4::RankEvidence::clear_place})
    if (message.ByteSizeLong() > most) (message.*clear)();
  return message;
}

Activity decode_activity(std::int32_t activity) {
  const bool known = activity >= 0 && activity <= static_cast<std::int32_t>(Activity::kEnded);
  return known ? static_cast<Activity>(activity) : Activity::kUnknown;
}

RankEvidence decode_rank(const v4::RankEvidence& message) {
  RankEvidence evidence{.rank = message.rank(),
                        .hostname = short_text(message.hostname()),
                        .activity = decode_activity(message.activity()),
                        .detail = short_text(message.detail()),
                        .place = short_text(message.place()),
                        .steps = decode_count(message.steps())};
  for (const v4::GroupPosition& group : message.groups()) {
    if (evidence.groups.size() == kMostGroups) break;
    evidence.groups.push_back(decode_group(group));
  }
  // A peer that sends more than it may: the bound of what is kept holds.
  const v4::RankEvidence fitting = encode_rank(evidence, kMaxEvidenceBytes);
  evidence.groups.resize(static_cast<std::size_t>(fitting.groups_size()));
  return evidence;
}

VerdictKind decode_kind(std::int32_t kind) {
  const bool known = kind >= 0 && kind <= static_cast<std::int32_t>(VerdictKind::kAllWait);
  return known ? static_cast<VerdictKind>(kind) : VerdictKind::kNone;
}

}  // namespace

std::vector<Evidence> split(const Evidence& evidence) {
  // All messages but the last have so many bytes: there was no room for one rank more.
  constexpr std::size_t kLeast = kRoom - kMaxEvidenceBytes - kFieldBytes;
  const std::size_t ranks = std::max<std::size_t>(evidence.ranks.size(), 1);
  const std::size_t share = (kMaxEvidenceMessages - 1) * kLeast / ranks;
  const std::size_t most =
      std::clamp(share, kLeastEvidenceBytes + kFieldBytes, kMaxEvidenceBytes + kFieldBytes) -
      kFieldBytes;
  std::vector<Evidence> messages;
  std::size_t used = kRoom;
  for (const RankEvidence& one : evidence.ranks) {
    const v4::RankEvidence message = encode_rank(one, most);
    const std::size_t bytes = message.ByteSizeLong() + kFieldBytes;
    if (used + bytes > kRoom) {
      messages.push_back({evidence.round, evidence.inquiry});
      used = 0;
    }
    used += bytes;
    messages.back().ranks.push_back(decode_rank(message));
  }
  return messages;
}

v4::Evidence encode_evidence(const Evidence& evidence) {
  v4::Evidence message;
  message.set_round(evidence.round);
  message.set_inquiry(evidence.inquiry);
  for (const RankEvidence& one : evidence.ranks)
    *message.add_ranks() = encode_rank(one, kMaxEvidenceBytes);
  return message;
}

Evidence decode_evidence(const v4::Evidence& message) {
  Evidence evidence{message.round(), message.inquiry()};
  for (const v4::RankEvidence& one : message.ranks()) evidence.ranks.push_back(decode_rank(one));
  return evidence;
}

v4::StandstillVerdict encode_verdict(const StandstillVerdict& said) {
  v4::StandstillVerdict message;
  message.set_round(said.round);
  message.set_inquiry(said.inquiry);
  message.set_kind(static_cast<std::int32_t>(said.verdict.kind));
  message.set_is_certain(said.verdict.is_certain);
  for (const int rank : said.verdict.ranks)
    if (message.ranks_size() < static_cast<int>(kMostVerdictRanks)) message.add_ranks(rank);
  if (said.verdict.rank_to_end >= 0) message.set_rank_to_end(said.verdict.rank_to_end);
  message.set_sentence(cut(said.verdict.sentence, kMaxTextBytes));
  return message;
}

StandstillVerdict decode_verdict(const v4::StandstillVerdict& message) {
  StandstillVerdict said{
      message.round(), message.inquiry(),
      Verdict{.kind = decode_kind(message.kind()),
              .is_certain = message.is_certain(),
              .rank_to_end = message.has_rank_to_end() ? std::max(message.rank_to_end(), -1) : -1,
              .sentence = cut(message.sentence(), kMaxTextBytes)}};
  for (const int rank : message.ranks())
    if (said.verdict.ranks.size() < kMostVerdictRanks) said.verdict.ranks.push_back(rank);
  return said;
}

}  // namespace ddprun::rendezvous
