// The messages of an inquiry (rendezvous/core/inquiry.h) as they travel: for codec.h. A node that
// looks at its workers must not lose its session by what it saw. So nothing of this is refused:
// both sides cut what is too long, and leave out what is too much. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "proto/rendezvous.pb.h"
#include "rendezvous/core/rendezvous.h"
#include "rendezvous/core/standstill.h"

namespace ddprun::rendezvous {

// The most bytes of one rank's evidence. Groups that do not fit are left out, the last ones first.
inline constexpr std::size_t kMaxEvidenceBytes = 2048;
// The most messages with which a node answers one look: they wait in the queue of its call.
// A node of very many ranks says less of each.
inline constexpr std::size_t kMaxEvidenceMessages = 24;

// The messages of a node, besides those in codec.h.
struct Suspicion {
  std::int64_t round = 0;
};
struct Evidence {
  std::int64_t round = 0;
  std::int64_t inquiry = 0;
  std::vector<RankEvidence> ranks{};
};

// The same evidence in messages that a host takes.
std::vector<Evidence> split(const Evidence& evidence);

v4::Evidence encode_evidence(const Evidence& evidence);
Evidence decode_evidence(const v4::Evidence& message);
v4::StandstillVerdict encode_verdict(const StandstillVerdict& said);
StandstillVerdict decode_verdict(const v4::StandstillVerdict& message);

}  // namespace ddprun::rendezvous
