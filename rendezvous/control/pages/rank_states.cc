#include "rendezvous/control/pages/rank_states.h"

#include <algorithm>
#include <array>
#include <limits>

#include "rendezvous/control/pages/page_text.h"

namespace ddprun::http {
namespace {

constexpr std::string_view kStuck = "stands still";
constexpr std::string_view kHeldUp = "held up";
constexpr std::string_view kOther = "other";

struct NamedStyle {
  std::string_view state;
  StateStyle style;
};
constexpr std::array<NamedStyle, 13> kStyles = {{{"running", {"run", "r"}},
                                                 {kStuck, {"stuck", "!"}},
                                                 {kHeldUp, {"held", "…"}},
                                                 {"succeeded", {"ok", "✓"}},
                                                 {"finished", {"ok", "✓"}},
                                                 {"waiting", {"wait", "w"}},
                                                 {"joining", {"wait", "w"}},
                                                 {"starting", {"wait", "w"}},
                                                 {"spare", {"spare", "p"}},
                                                 {"stopping", {"end", "s"}},
                                                 {"leaving", {"end", "l"}},
                                                 {"dismissed", {"end", "d"}},
                                                 {"failed", {"stuck", "×"}}}};

// Whether one of the ranks [first, first + count) is to blame.
bool holds_stuck_rank(const JobStatus& job, std::int64_t first, std::int64_t count) {
  const auto found = std::ranges::lower_bound(job.stuck_ranks, first);
  return found != job.stuck_ranks.end() && *found < first + count;
}

std::string_view state_of(const JobStatus& job, const SeatStatus& seat, int first, int count) {
  if (job.standstill.empty() || seat.first_rank < 0) return seat.state;
  if (holds_stuck_rank(job, first, count)) return kStuck;
  return seat.state == "running" ? kHeldUp : seat.state;
}

void add_to(StateGroup& group, const SeatStatus& seat) {
  ++group.nodes;
  group.ranks += std::max(seat.workers, 0);
  const int rank = seat.node_rank;
  if (rank < 0) return;
  const bool goes_on = group.last_rank >= 0 && rank == group.last_rank + 1;
  group.last_rank = rank;
  if (goes_on && group.more_ranges == 0) group.ranges.back().second = rank;
  if (goes_on) return;
  if (group.ranges.size() < kMostRangesShown) {
    group.ranges.emplace_back(rank, rank);
  } else {
    ++group.more_ranges;
  }
}

}  // namespace

StateStyle style_of(std::string_view state) {
  const auto* const found = std::ranges::find(kStyles, state, &NamedStyle::state);
  return found == kStyles.end() ? StateStyle{"wait", "?"} : found->style;
}

std::string_view rank_state(const JobStatus& job, const SeatStatus& seat, int rank) {
  return state_of(job, seat, rank, 1);
}

std::string_view node_state(const JobStatus& job, const SeatStatus& seat) {
  return state_of(job, seat, seat.first_rank, seat.workers);
}

std::vector<StateGroup> groups_by_state(const JobStatus& job) {
  std::vector<StateGroup> groups;
  for (const SeatStatus& seat : job.seats) {
    const std::string_view state = node_state(job, seat);
    const auto found = std::ranges::find(groups, state, &StateGroup::state);
    if (found != groups.end()) {
      add_to(*found, seat);
      continue;
    }
    const std::size_t left = kMostStateGroups - groups.size();
    if (left > 0) groups.push_back({.state = std::string(left > 1 ? state : kOther)});
    add_to(groups.back(), seat);
  }
  return groups;
}

std::string ranges_text(const StateGroup& group) {
  std::string text;
  for (const auto& [first, last] : group.ranges) {
    add(text, "{}{}", text.empty() ? (group.nodes == 1 ? "node " : "nodes ") : ", ", first);
    if (last > first) add(text, "–{}", last);
  }
  if (group.more_ranges > 0) add(text, " and {}", counted(group.more_ranges, "more range"));
  return text;
}

}  // namespace ddprun::http
