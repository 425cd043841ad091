#include "agent/standstill/rank_look.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/duration.h"

namespace ddprun::agent {
namespace {

using rendezvous::Activity;
using rendezvous::GroupPosition;

// Less is not work: a thread that wakes up to look, a log line.
constexpr double kIdleCpu = 0.03;
constexpr std::uint64_t kIdleBytes = std::uint64_t{64} << 10;
// Sleeps of the main thread in a second. A loop that looks for something sleeps ten times.
constexpr double kIdleSwitches = 20;

bool is_stack_the_same(const RankLook& first, const RankLook& second) {
  return !first.answer || !second.answer || first.answer->stack == second.answer->stack;
}

// Returns what it did between the looks; empty: nothing.
std::string work_between(const RankLook& first, const RankLook& second,
                         std::chrono::nanoseconds passed) {
  const double seconds = in_seconds(passed);
  const double cpu = in_seconds(second.process.cpu - first.process.cpu) / seconds;
  if (second.steps != first.steps) return "it has done a step";
  if (cpu > kIdleCpu) return fmt::format("uses {:.2f} CPUs", cpu);
  if (second.process.bytes > first.process.bytes + kIdleBytes) {
    constexpr double kMega = 1e6;
    const auto bytes = static_cast<double>(second.process.bytes - first.process.bytes);
    return fmt::format("reads and writes {:.1f} MB/s", bytes / seconds / kMega);
  }
  if (second.process.major_faults > first.process.major_faults) return "reads memory from a disk";
  const auto switches = static_cast<double>(second.process.switches - first.process.switches);
  if (switches > kIdleSwitches * seconds) return "its calls go on";
  if (!is_stack_the_same(first, second)) return "its stack moves";
  return {};
}

// A debugger of Python waits for its user as a part of the program.
bool is_debugged(const RankLook& look) {
  if (look.process.state == 't') return true;
  return look.answer && std::ranges::any_of(look.answer->stack, [](const WitnessFrame& frame) {
           return frame.file.ends_with("/pdb.py") || frame.file.ends_with("/bdb.py") ||
                  frame.file.find("/debugpy/") != std::string::npos;
         });
}

// The kernel shows a frozen process as one that sleeps, in one of these.
bool is_frozen(const ProcessLook& look) {
  return look.wait_channel == "do_freezer_trap" || look.wait_channel == "__refrigerator";
}

bool is_in_kernel(const ProcessLook& first, const ProcessLook& second) {
  return first.state == 'D' && second.state == 'D' && first.wait_channel == second.wait_channel;
}

// It waits for other ranks in a call that no group knows: new_group(), monitored_barrier().
bool waits_unseen(const RankLook& look) {
  return look.answer && !look.answer->inside.empty() &&
         std::ranges::none_of(look.answer->groups, &GroupPosition::is_waiting);
}

Activity activity_of(const RankLook& first, const RankLook& second, bool works) {
  if (second.has_ended_well) return Activity::kEnded;
  if (is_debugged(second)) return Activity::kTraced;
  if (is_frozen(second.process)) return Activity::kFrozen;
  if (second.process.state == 'T') return Activity::kStopped;
  if (works) return Activity::kBusy;
  if (is_in_kernel(first.process, second.process)) return Activity::kInKernel;
  if (!second.has_witness) return Activity::kUnknown;
  if (waits_unseen(second)) return Activity::kUnknown;
  if (second.answer) return Activity::kIdle;
  // One answer shows that its interpreter runs. The host may be too busy for another one.
  return first.answer ? Activity::kUnknown : Activity::kSilent;
}

// A call that has completed between the looks was no wait, nor is the next one yet.
void settle(GroupPosition& group, const std::vector<GroupPosition>& before) {
  const auto earlier = std::ranges::find(before, group.name, &GroupPosition::name);
  const bool waited = earlier != before.end() && earlier->is_waiting();
  if (group.is_waiting() && (!waited || earlier->number != group.number))
    group.completed = group.enqueued;
}

// Those in which it waits, then those in which it came farthest.
std::vector<GroupPosition> groups_of(const RankLook& first, const RankLook& second) {
  if (!first.answer || !second.answer) return {};
  std::vector<GroupPosition> groups = second.answer->groups;
  for (GroupPosition& group : groups) settle(group, first.answer->groups);
  std::ranges::stable_sort(groups, [](const GroupPosition& left, const GroupPosition& right) {
    return std::pair(left.is_waiting(), left.enqueued) >
           std::pair(right.is_waiting(), right.enqueued);
  });
  if (groups.size() > rendezvous::kMostGroups) groups.resize(rendezvous::kMostGroups);
  return groups;
}

}  // namespace

rendezvous::RankEvidence evidence_of(const RankLook& first, const RankLook& second,
                                     std::chrono::nanoseconds passed) {
  const std::string work = work_between(first, second, passed);
  rendezvous::RankEvidence evidence{.activity = activity_of(first, second, !work.empty()),
                                    .detail = work,
                                    .place = second.answer ? place_in(second.answer->stack) : "",
                                    .steps = static_cast<std::int64_t>(second.steps),
                                    .groups = groups_of(first, second)};
  if (evidence.activity == Activity::kUnknown && waits_unseen(second))
    evidence.detail = second.answer->inside;
  if (evidence.activity == Activity::kInKernel) evidence.detail = second.process.wait_channel;
  return evidence;
}

}  // namespace ddprun::agent
