// The comparison of replicas: whether tensors that should be the same on all ranks are. Nodes tell
// a 64-bit hash of each check of their ranks. The host compares. If two ranks differ, it asks for
// the hashes of single tensors, 64 cells at a time. When it knows which one, all nodes of the
// round are told. Pure: no I/O and no clock. An event and `now` go in; what the nodes are told
// comes out.
//
//   quiet --(all sums of a check are there, and differ)--> asking
//   asking --(all answers are there, the first cell that differs has several tensors)--> asking
//   asking --(it has one, or kReplicaAnswerLimit is over)--> quiet, with a verdict
//
// A node may lie. It speaks for its own ranks alone, and what is kept of them is bounded.
//
// Owned by Host, used on its thread only.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/core/inquiry.h"
#include "rendezvous/core/membership.h"
#include "rendezvous/core/rendezvous.h"

namespace ddprun::rendezvous {

// How long answers to a question are waited for.
inline constexpr std::chrono::seconds kReplicaAnswerLimit{5};

// The sets of a round for each of its ranks, and the checks of a set that are not complete.
inline constexpr std::size_t kMostSetsOfRank = 4;
inline constexpr std::size_t kMostOpenChecks = 256;

// The hash by which all cells, and all tensors in one, become one number.
std::uint64_t folded(const std::vector<std::uint64_t>& hashes, std::size_t begin, std::size_t end);

// The tensors [first, first + count) as kMostReplicaCells cells or fewer, of `hashes`, one a
// tensor. `count` 0: all from `first` on. Nothing beyond the end.
std::vector<std::uint64_t> replica_cells(const std::vector<std::uint64_t>& hashes,
                                         std::int64_t first, std::int64_t count);

// One rank's answer to the last question.
struct RankTensors {
  int rank = 0;
  std::string hostname{};
  std::vector<std::uint64_t> cells{};  // one a tensor
  std::vector<std::string> names{};    // of the first ones
};
// The ranks and tensors that differ, from the answers of all ranks. A cell of them is one tensor.
// `answers` ascend by rank. The majority is right: a rank outside of it is named. Without one, all
// are.
ReplicaVerdict judge_replicas(const std::vector<RankTensors>& answers, std::int64_t step);

class ReplicaComparison {
 public:
  // A node tells sums of its ranks, or answers a question.
  std::optional<Announcement> reported(SessionId from, const ReplicaReport& report,
                                       const Membership& membership, Time now);
  // The membership may have changed. If the round runs no more, nothing of it is kept.
  void follow(const Membership& membership);
  // Nothing is kept.
  void end();
  // The host of a node of the round that does not compare, while another one does. Once.
  std::optional<std::string> take_node_without();
  // Time passed. Call it at look_again_at().
  std::optional<Announcement> tick(Time now);

  // When tick() can next change something. Time::max(): only an event can.
  Time look_again_at() const { return ends_at_; }

 private:
  struct Node {
    int first_rank = 0;
    int ranks = 0;
    std::string hostname{};
  };
  struct Check {
    std::map<int, std::uint64_t> sums;  // by rank
    bool differs() const;
  };
  struct Set {
    int members = 0;                       // as told first
    std::map<std::int64_t, Check> checks;  // by step
    bool is_told = false;                  // of a difference: people know
  };
  struct Answer {
    std::int64_t tensors = 0;
    std::vector<std::uint64_t> cells;
    std::vector<std::string> names;
  };

  bool begin(SessionId from, const Membership& membership, std::int64_t round);
  const Node* node_of(int rank) const;
  void add(const Node& node, const ReplicaSum& sum);
  std::optional<Announcement> look_for_difference(Time now);
  void forget_equal_checks(Set& set);
  Announcement ask(std::int64_t first, std::int64_t count, Time now);
  std::optional<Announcement> narrow(Time now);
  void fill_in(std::vector<RankTensors>& answers, std::size_t cell) const;
  Announcement conclude(ReplicaVerdict verdict);
  ReplicaVerdict verdict_of_sums() const;
  std::vector<SessionId> sessions() const;

  std::int64_t round_ = 0;
  int world_size_ = 0;
  std::map<SessionId, Node> nodes_;
  std::optional<std::string> node_without_;
  bool is_node_without_told_ = false;
  std::map<std::uint64_t, Set> sets_;  // by key
  std::int64_t number_ = 0;            // of the last question

  // ---- while it asks ----
  bool is_asking_ = false;
  Time ends_at_ = Time::max();
  ReplicaQuestion question_{};
  Check asked_{};
  std::map<int, Answer> answers_;  // by rank
};

}  // namespace ddprun::rendezvous
