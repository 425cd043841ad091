// The inquiry into a round whose workers may stand still. A node suspects it, and all nodes look.
// The verdict is made from what they saw, by judge() (standstill.h). Pure: no I/O and no clock. An
// event and `now` go in; what the nodes are told comes out.
//
//   closed --(a node of the round suspects it)--> open
//   open --(all evidence is there, or kInquiryLimit is over)--> closed, with a verdict
//   open --(the round breaks, or the job ends)--> closed, without one
//
// A node may lie. It opens one inquiry a second at most, speaks for its own ranks alone, and for
// each of them once. So what is kept is bounded by the ranks of the round, and freed at the end.
//
// Owned by Host, used on its thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "rendezvous/core/membership.h"
#include "rendezvous/core/rendezvous.h"
#include "rendezvous/core/standstill.h"

namespace ddprun::rendezvous {

// How long evidence is waited for. A node takes two looks some seconds apart.
inline constexpr std::chrono::seconds kInquiryLimit{15};
// The next inquiry opens so long after the last one opened, at the earliest.
inline constexpr std::chrono::seconds kInquiryEvery{1};

// One message and the nodes that get it.
struct Announcement {
  std::vector<SessionId> to;
  HostMessage message;
};

class Inquiry {
 public:
  using Judge = std::function<Verdict(std::vector<RankEvidence>, int world_size)>;
  explicit Inquiry(Judge judge) : judge_(std::move(judge)) {}

  // A node says that the workers of `round` stand still. The first of that round opens an inquiry:
  // its nodes are told Look. Nodes that answer no looks are not told and not waited for.
  std::optional<Announcement> suspected(SessionId from, std::int64_t round,
                                        const Membership& membership, Time now);
  // A node says what it saw. The last one brings the verdict. Evidence of another inquiry changes
  // nothing. Nor does that of a rank that is not the node's own, and the second of a rank.
  std::optional<Announcement> answered(SessionId from, std::int64_t round, std::int64_t inquiry,
                                       std::vector<RankEvidence> evidence);
  // The membership may have changed. If the round runs no more, the inquiry ends.
  void follow(const Membership& membership);
  // Ends the inquiry without a verdict.
  void end();
  // Time passed. Call it at look_again_at().
  std::optional<Announcement> tick(Time now);

  // When tick() can next change something. Time::max(): only an event can.
  Time look_again_at() const { return ends_at_; }
  bool is_open() const { return ends_at_ != Time::max(); }

 private:
  // The ranks of a node: so many from `first` on.
  struct Ranks {
    int first = 0;
    int count = 0;
    bool holds(int rank) const { return rank >= first && rank < first + count; }
  };

  bool summon(const Membership& membership);
  std::vector<SessionId> sessions() const;
  Announcement conclude();

  Judge judge_;
  std::int64_t number_ = 0;
  std::optional<Time> opened_at_;  // the last one

  // ---- while it is open ----
  Time ends_at_ = Time::max();
  std::int64_t round_ = 0;
  int world_size_ = 0;
  std::size_t awaited_ = 0;           // ranks
  std::map<SessionId, Ranks> nodes_;  // those that answer
  std::map<int, RankEvidence> evidence_;
};

}  // namespace ddprun::rendezvous
