// The nodes that the membership knows, and the state of each. Finds a node by its session, its id,
// the rank it wants and its arrival. Does not look at all nodes for that. Counts them by state.
// Decides nothing: membership.h does. Pure. Owned by Membership.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "rendezvous/core/seating.h"

namespace ddprun::rendezvous {

// So many missing ranks are named at most.
inline constexpr std::size_t kMissingShown = 8;
// A larger job has no such list: it would cost too much for each node that is told.
inline constexpr int kMissingSearched = 512;

enum class MemberState {
  kSpare,        // all seats are taken: waits until one is free
  kWaiting,      // holds a seat in the next round
  kRunning,      // in the round
  kSucceeded,    // in the round, all workers exited 0
  kStopping,     // its round broke; has not asked for the next one yet
  kLeaving,      // goes for good; its workers may still run, so no round may start
  kDismissed,    // got its last message; nothing it says counts any more
  kDisbelieved,  // came back with workers, and no seat is its own: ends them, and then it is new
};

// Its name for people and for JSON: "running", "waiting".
std::string_view name_of(MemberState state);

struct Member {
  Entrant entrant;
  MemberState state = MemberState::kSpare;
  std::uint64_t arrival = 0;  // order of the first joins; a restart does not change it
  bool gone = false;          // it left, or was lost, after its success
  // An operator wants it to leave; said again if it comes back and may not have heard it.
  std::optional<Drain> drain{};

  bool in_round() const {
    return state == MemberState::kRunning || state == MemberState::kSucceeded;
  }
  // In the round of now, or kept for it in the next one.
  bool holds_seat() const {
    return in_round() || state == MemberState::kWaiting || state == MemberState::kStopping;
  }
  // Returns whether a message may still be sent to it.
  bool listens() const {
    return state != MemberState::kDismissed && state != MemberState::kLeaving && !gone;
  }
  SessionId session() const { return entrant.session; }
  // The node rank that it had in the last round it was in; -1: it was in none.
  int last_seat() const { return entrant.previous_seat; }
};

// Returns the failure that the other nodes are told when a node is unreachable.
Failure lost_node(const Member& member, const std::string& how);

class Members {
 public:
  // Null if it is not here. A pointer is good until its member is erased.
  Member* find(SessionId session);
  const Member* find(SessionId session) const;
  // A new spare, the last to arrive. `session` must not be here yet.
  Member& add(SessionId session);
  void erase(Member& member);
  // All that are `gone`.
  void erase_gone();

  // Takes the facts that the node brings. Its id and the rank that it must have are its own as long
  // as it listens. No holder may be here (holder_of_id(), holder_of_rank()).
  void set_spec(Member& member, const NodeSpec& spec, const PeerInfo& observed);
  void set_state(Member& member, MemberState state);
  void set_gone(Member& member);

  int count(MemberState state) const { return counts_[index(state)]; }
  int size() const { return static_cast<int>(members_.size()); }
  int listeners() const {
    return size() - count(MemberState::kDismissed) - count(MemberState::kLeaving) - gone_;
  }
  // Returns the node with this id, or the one that must have this rank. Messages may be sent to it;
  // null: none.
  const Member* holder_of_id(const std::string& node_id) const;
  const Member* holder_of_rank(int node_rank) const;
  // Names the ranks below `ranks` that no node claims, as in "1, 3". Empty if no rank is claimed.
  std::string missing_ranks(int ranks) const;
  // The spare that came first; null: none.
  Member* first_spare();
  // In the order of the first joins and not of the last ones. So a node keeps its node rank over a
  // restart if the same nodes come back.
  std::vector<Member*> by_arrival(MemberState state);
  // Returns the members in the round in the order of their seats. The ranks follow each other so,
  // as in make_round(). A leader that took the round over knows no more of it than its nodes have
  // said. Empty if a seat's node is not known: then nobody knows the ranks of those behind it.
  std::vector<const Member*> by_seat() const;
  // Calls `act(member)` for each; it must not add or erase one.
  template <typename Act>
  void for_each(Act act) {
    for (auto& [session, member] : members_) act(member);
  }
  template <typename Act>
  void for_each(Act act) const {
    for (const auto& [session, member] : members_) act(member);
  }

 private:
  static constexpr std::size_t kMemberStates = 8;
  static std::size_t index(MemberState state) { return static_cast<std::size_t>(state); }
  void drop_claims(const Member& member);

  std::map<SessionId, Member> members_;
  std::uint64_t arrivals_ = 0;
  std::array<int, kMemberStates> counts_{};
  int gone_ = 0;
  std::map<std::uint64_t, Member*> spares_;  // by arrival
  std::unordered_map<std::string, Member*> by_id_;
  std::unordered_map<int, Member*> by_rank_;
};

}  // namespace ddprun::rendezvous
