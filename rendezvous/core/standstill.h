// The evidence on a job whose ranks make no step, and the verdict on it. A node that suspects a
// standstill says so. The host lets all nodes look, and each sends what it saw of its own ranks.
// judge() says which ranks the others wait for, and why. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::rendezvous {

// The most of each that one rank's evidence holds. So it fits 2 KiB, and a host bounds what it
// keeps.
inline constexpr std::size_t kMostGroups = 4;
inline constexpr std::size_t kMostGroupRanks = 64;
inline constexpr std::size_t kMostEvidenceText = 200;  // bytes of each text
// A verdict blames no more ranks by their numbers: it must fit a message.
inline constexpr std::size_t kMostVerdictRanks = 1024;

// The group of sends and receives; GroupPosition::ranks has the partner.
inline constexpr std::string_view kPointToPoint = "point to point";

// How a rank spent the time between the two looks of its node, some seconds apart. They travel as
// numbers: new ones come last.
enum class Activity {
  kUnknown,   // it could not be seen
  kBusy,      // it computed, read, wrote, or its stack moved
  kIdle,      // it did nothing, and its stack stayed the same
  kSilent,    // it did nothing, and its interpreter did not answer
  kInKernel,  // it was in uninterruptible sleep at both looks
  kStopped,   // SIGSTOP
  kFrozen,    // its cgroup is frozen
  kTraced,    // a debugger holds it
  kEnded,     // its process has exited 0
};
std::string_view name_of(Activity activity);

// How far a rank is in one process group.
struct GroupPosition {
  std::string name;
  std::vector<int> ranks{};  // its members, global ranks, not more than kMostGroupRanks; empty: all
  std::int64_t enqueued = 0;   // the number of the last collective that it has called
  std::int64_t completed = 0;  // of the last one that has completed; below: it waits in a call
  // These are of the oldest call that has not completed; of the last one if all have.
  std::int64_t number = 0;
  std::string operation{};  // "all_reduce"
  std::string shapes{};     // "[[1000, 3]]"; empty: unknown or none

  bool is_waiting() const { return enqueued > completed; }
  bool operator==(const GroupPosition&) const = default;
};

// A node's evidence on one of its ranks.
struct RankEvidence {
  int rank = 0;  // global
  std::string hostname{};
  Activity activity = Activity::kUnknown;
  // With kBusy its work, with kInKernel its place there. With kUnknown the function in which it
  // waits for other ranks.
  std::string detail{};
  std::string place{};  // the innermost line of the user's own: "train (hang.py:18)"
  std::int64_t steps = 0;
  std::vector<GroupPosition> groups{};

  bool operator==(const RankEvidence&) const = default;
};

// They travel as numbers: new ones come last.
enum class VerdictKind {
  kNone,            // nothing can be said, or the job goes on
  kBusy,            // the rank that others wait for works
  kNothingDone,     // it does nothing
  kDesynchronised,  // ranks wait in calls that do not belong together
  kMissing,         // it has ended, and others wait for it
  kStopped,         // it was stopped from outside
  kInKernel,        // it is stuck in the kernel
  kHeld,            // its interpreter is held by a call that does nothing
  kAllWait,         // all wait in the same call: the network or a device
};
std::string_view name_of(VerdictKind kind);

struct Verdict {
  VerdictKind kind = VerdictKind::kNone;
  // Whether ranks may be killed for it: evidence of all ranks was there.
  bool is_certain = false;
  std::vector<int> ranks{};  // those to blame; empty: none is
  int rank_to_end = -1;      // one whose end makes the job start anew; -1: none
  std::string sentence{};    // one line for people

  // Whether people should hear of it.
  bool is_alarm() const { return kind != VerdictKind::kNone && kind != VerdictKind::kBusy; }
  // Whether a rank may be killed for it: one that does nothing while others wait for it.
  bool may_be_acted_on() const;
  bool operator==(const Verdict&) const = default;
};

// The verdict on a round of `world_size` ranks. `evidence`: at most one of each rank, in any order;
// of some ranks there may be none. A rank that others wait for is blamed, never one that waits.
Verdict judge(const std::vector<RankEvidence>& evidence, int world_size);

}  // namespace ddprun::rendezvous
