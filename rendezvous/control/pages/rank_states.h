// The states of a job's ranks and nodes, as the page shows them. Groups of nodes of the same state.
// Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/control/pages/status_report.h"

namespace ddprun::http {

// More groups, and more ranges of a group, are counted and not named.
inline constexpr std::size_t kMostStateGroups = 12;
inline constexpr std::size_t kMostRangesShown = 8;

// A state is shown by a colour and by a sign, so that nobody depends on the colour.
struct StateStyle {
  std::string_view css_class;
  std::string_view sign;
};
StateStyle style_of(std::string_view state);

// The state of a rank of this node, or of the node. While the job stands still, those that others
// wait for have "stands still". Those that wait have "held up". The text is of the report or of a
// constant.
std::string_view rank_state(const JobStatus& job, const SeatStatus& seat, int rank);
std::string_view node_state(const JobStatus& job, const SeatStatus& seat);

// The nodes of one state.
struct StateGroup {
  std::string state;
  std::size_t nodes = 0;
  std::int64_t ranks = 0;
  std::vector<std::pair<int, int>> ranges{};  // of node ranks, both ends in it
  std::size_t more_ranges = 0;
  int last_rank = -1;  // the node rank that came last
};
// In the order of their first nodes. The last one may hold all the states that are left: "other".
std::vector<StateGroup> groups_by_state(const JobStatus& job);
// "nodes 0–4, 7, 9–12 and 3 more ranges"; empty: none has a node rank.
std::string ranges_text(const StateGroup& group);

}  // namespace ddprun::http
