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
constexpr double kWaitingCpu = 0.5;
constexpr std::uint64_t kIdleBytes = std::uint64_t{64} << 10;
// Sleeps of the main thread in a second. A loop that looks for something sleeps ten times.
constexpr double kIdleSwitches = 20;

bool is_stack_the_same(const RankLook& first, const RankLook& second) {
  const auto is_same = [](const auto& one, const auto& other) {
    return !one || !other || one->stack == other->stack;
  };
  return is_same(first.answer, second.answer) && is_same(first.spied, second.spied);
}

// The better one of the two.
const std::optional<WitnessAnswer>& stack_of(const RankLook& look) {
  return look.answer ? look.answer : look.spied;
}

// A program on the engine has no witness, but tells of its calls. It may wait in one that it has
// begun.
bool is_on_engine(const RankLook& look) { return look.calls_begun > 0; }
bool waits_in_engine(const RankLook& first, const RankLook& second) {
  return second.calls_begun > second.calls_done && first.calls_begun == second.calls_begun &&
         first.calls_done == second.calls_done;
}

// Returns what it did between the looks; empty: nothing.
std::string work_between(const RankLook& first, const RankLook& second,
                         std::chrono::nanoseconds passed) {
  const double seconds = in_seconds(passed);
  const double cpu = in_seconds(second.process.cpu - first.process.cpu) / seconds;
  if (second.steps != first.steps) return "it has done a step";
  if (second.calls_done != first.calls_done) return "its calls go on";
  // The engine wakes up in a wait, to look whether the others live.
  if (waits_in_engine(first, second) && cpu < kWaitingCpu) return {};
  if (cpu > kIdleCpu) return fmt::format("uses {:.2f} CPUs", cpu);
  if (second.process.bytes > first.process.bytes + kIdleBytes) {
    constexpr double kMega = 1e6;
    const auto bytes = static_cast<double>(second.process.bytes - first.process.bytes);
    return fmt::format("reads and writes {:.1f} MB/s", bytes / seconds / kMega);
  }
  // The bytes of a connection or a child that has ended are counted no more.
  if (second.process.bytes + kIdleBytes < first.process.bytes) return "its connections end";
  if (second.process.major_faults > first.process.major_faults) return "reads memory from a disk";
  const auto switches = static_cast<double>(second.process.switches - first.process.switches);
  if (switches > kIdleSwitches * seconds) return "its calls go on";
  if (!is_stack_the_same(first, second)) return "its stack moves";
  return {};
}

// A debugger of Python waits for its user as a part of the program.
bool is_debugged(const RankLook& look) {
  if (look.process.state == 't') return true;
  const auto& stack = stack_of(look);
  return stack && std::ranges::any_of(stack->stack, [](const WitnessFrame& frame) {
           return frame.file.ends_with("/pdb.py") || frame.file.ends_with("/bdb.py") ||
                  frame.file.find("/debugpy/") != std::string::npos;
         });
}

// The kernel shows a frozen process as one that sleeps, in one of these. The last one is that of
// Linux 6.18, and of a process that is stopped, which has another state.
bool is_frozen(const ProcessLook& look) {
  return look.wait_channel == "do_freezer_trap" || look.wait_channel == "__refrigerator" ||
         (look.wait_channel == "get_signal" && look.state == 'S');
}

bool is_in_kernel(const ProcessLook& first, const ProcessLook& second) {
  return first.state == 'D' && second.state == 'D' && first.wait_channel == second.wait_channel;
}

// It waits for other ranks in a call that no group knows: new_group(), monitored_barrier().
bool waits_unseen(const RankLook& look) {
  const auto& stack = stack_of(look);
  return stack && !stack->inside.empty() &&
         std::ranges::none_of(stack->groups, &GroupPosition::is_waiting);
}

// An idle process: whether its rank waits for others, or does nothing.
Activity activity_of_idle(const RankLook& first, const RankLook& second) {
  if (is_on_engine(second))
    return waits_in_engine(first, second) ? Activity::kUnknown : Activity::kIdle;
  const bool is_spied = first.spied && second.spied;
  if (!second.has_witness && !is_spied) return Activity::kUnknown;
  // py-spy sees a stack also if a call holds the interpreter.
  if (second.has_witness && !second.answer && !first.answer) return Activity::kSilent;
  if (waits_unseen(second)) return Activity::kUnknown;
  // One answer shows that its interpreter runs. The host may be too busy for another one.
  return second.answer || !second.has_witness ? Activity::kIdle : Activity::kUnknown;
}

Activity activity_of(const RankLook& first, const RankLook& second, bool works) {
  if (second.has_ended_well) return Activity::kEnded;
  if (is_debugged(second)) return Activity::kTraced;
  if (is_frozen(second.process)) return Activity::kFrozen;
  if (second.process.state == 'T') return Activity::kStopped;
  if (works) return Activity::kBusy;
  if (is_in_kernel(first.process, second.process)) return Activity::kInKernel;
  return activity_of_idle(first, second);
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
  const auto& stack = stack_of(second);
  rendezvous::RankEvidence evidence{.activity = activity_of(first, second, !work.empty()),
                                    .detail = work,
                                    .place = stack ? place_in(stack->stack) : "",
                                    .steps = static_cast<std::int64_t>(second.steps),
                                    .groups = groups_of(first, second)};
  if (evidence.activity == Activity::kUnknown && waits_unseen(second))
    evidence.detail = stack->inside;
  if (evidence.activity == Activity::kUnknown && waits_in_engine(first, second))
    evidence.detail = "a collective of the engine";
  if (evidence.activity == Activity::kInKernel) evidence.detail = second.process.wait_channel;
  return evidence;
}

}  // namespace ddprun::agent
