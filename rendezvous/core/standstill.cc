#include "rendezvous/core/standstill.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "base/number_ranges.h"

namespace ddprun::rendezvous {
namespace {

using Ranks = std::vector<const RankEvidence*>;

// A process that cannot run waits for nobody, whatever it has called before.
bool can_run(const RankEvidence& rank) {
  switch (rank.activity) {
    case Activity::kUnknown:
    case Activity::kBusy:
    case Activity::kIdle:
      return true;
    case Activity::kSilent:
    case Activity::kInKernel:
    case Activity::kStopped:
    case Activity::kFrozen:
    case Activity::kTraced:
    case Activity::kEnded:
      return false;
  }
  return false;
}

// The call in which it waits; null: in none.
const GroupPosition* wait_of(const RankEvidence& rank) {
  if (!can_run(rank)) return nullptr;
  const auto found = std::ranges::find_if(rank.groups, &GroupPosition::is_waiting);
  return found == rank.groups.end() ? nullptr : &*found;
}

const GroupPosition* position_in(const RankEvidence& rank, std::string_view group) {
  const auto found = std::ranges::find(rank.groups, group, &GroupPosition::name);
  return found == rank.groups.end() ? nullptr : &*found;
}

// ---- who is waited for ----

// The farthest call of one group in which a rank waits.
struct FarthestCall {
  std::int64_t number = 0;
  std::vector<int> ranks;  // empty: all
};

class Standstill {
 public:
  Standstill(const std::vector<RankEvidence>& evidence, int world_size)
      : by_rank_(static_cast<std::size_t>(world_size)),
        is_waited_for_(static_cast<std::size_t>(world_size)) {
    for (const RankEvidence& rank : evidence) {
      if (!is_of_the_world(rank.rank)) continue;
      by_rank_[index(rank.rank)] = &rank;
      add_calls(rank);
    }
    for (const auto& [group, call] : calls_) look_who_is_missing(group, call);
    for (const RankEvidence* const rank : known()) look_for_a_partner(*rank);
  }

  // By rank.
  Ranks known() const {
    Ranks all;
    std::ranges::copy_if(by_rank_, std::back_inserter(all),
                         [](const RankEvidence* rank) { return rank != nullptr; });
    return all;
  }
  bool is_complete() const { return known().size() == by_rank_.size(); }

  Ranks waiting() const {
    Ranks all = known();
    std::erase_if(all, [](const RankEvidence* rank) { return wait_of(*rank) == nullptr; });
    return all;
  }
  // Those that others wait for and that wait for nobody.
  Ranks awaited() const {
    Ranks all = known();
    std::erase_if(all, [this](const RankEvidence* rank) {
      return !is_waited_for_[index(rank->rank)] || wait_of(*rank) != nullptr;
    });
    return all;
  }
  bool waits_for_unknown_ranks() const {
    for (std::size_t rank = 0; rank < by_rank_.size(); ++rank)
      if (is_waited_for_[rank] && by_rank_[rank] == nullptr) return true;
    return false;
  }
  bool is_anyone_waited_for() const {
    return std::ranges::find(is_waited_for_, true) != is_waited_for_.end();
  }

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  bool is_of_the_world(int rank) const { return rank >= 0 && index(rank) < by_rank_.size(); }

  void add_calls(const RankEvidence& rank) {
    if (!can_run(rank)) return;
    for (const GroupPosition& position : rank.groups) {
      if (!position.is_waiting() || position.name == kPointToPoint) continue;
      FarthestCall& call = calls_[position.name];
      if (position.number <= call.number) continue;
      call = {position.number, position.ranks};
    }
  }

  // A member that has not come to the call is waited for. A rank with many groups has not told all
  // of them.
  void look_who_is_missing(const std::string& group, const FarthestCall& call) {
    const auto look = [&](int rank) {
      if (!is_of_the_world(rank)) return;
      const RankEvidence* const evidence = by_rank_[index(rank)];
      const GroupPosition* const position =
          evidence == nullptr ? nullptr : position_in(*evidence, group);
      const bool is_cut = evidence != nullptr && evidence->groups.size() >= kMostGroups;
      const bool has_come = position == nullptr ? is_cut : position->enqueued >= call.number;
      if (!has_come) is_waited_for_[index(rank)] = true;
    };
    std::ranges::for_each(call.ranks, look);
    if (!call.ranks.empty()) return;
    for (int rank = 0; is_of_the_world(rank); ++rank) look(rank);
  }

  // A send or a receive waits for the one rank that has to do the other half.
  void look_for_a_partner(const RankEvidence& rank) {
    const GroupPosition* const call = position_in(rank, kPointToPoint);
    if (call == nullptr || !call->is_waiting() || !can_run(rank)) return;
    for (const int partner : call->ranks) {
      if (!is_of_the_world(partner)) continue;
      const RankEvidence* const evidence = by_rank_[index(partner)];
      const GroupPosition* const half =
          evidence == nullptr ? nullptr : position_in(*evidence, kPointToPoint);
      if (half == nullptr || !half->is_waiting()) is_waited_for_[index(partner)] = true;
    }
  }

  Ranks by_rank_;
  std::vector<bool> is_waited_for_;
  std::map<std::string, FarthestCall> calls_;  // by group
};

// ---- sentences ----

std::vector<int> numbers(const Ranks& ranks) {
  std::vector<int> all;
  all.reserve(ranks.size());
  for (const RankEvidence* const rank : ranks) all.push_back(rank->rank);
  return all;
}

// torch.distributed's default group.
bool is_default(const GroupPosition& call) { return call.name == "0"; }

std::string call_text(const GroupPosition& call) {
  if (call.name == kPointToPoint) return call.operation;
  return fmt::format("{} #{}{}{}", call.operation, call.number,
                     is_default(call) ? "" : " of group " + call.name,
                     call.shapes.empty() ? "" : " (" + call.shapes + ")");
}

// `before` comes before a text that is there.
std::string with(const char* before, const std::string& text) {
  return text.empty() ? "" : before + text;
}

std::string at(const RankEvidence& rank) { return with(" at ", rank.place); }

// "rank 2", "ranks 2, 4-7"
std::string named(const Ranks& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + number_ranges(numbers(ranks), ", ");
}

// The hosts of the ranks, if there are several hosts and these ranks are on one of them.
std::string hosts(const Ranks& ranks, const Ranks& all) {
  const auto is_same = [](const Ranks& some) {
    return std::ranges::all_of(
        some, [&](const RankEvidence* rank) { return rank->hostname == some.front()->hostname; });
  };
  return is_same(all) || !is_same(ranks) ? "" : " on " + ranks.front()->hostname;
}

std::string subject(const Ranks& ranks, const Ranks& all) {
  return named(ranks) + hosts(ranks, all);
}

// The farthest that the rank has come by itself.
std::string last_call(const RankEvidence& rank) {
  if (rank.groups.empty()) return rank.steps == 0 ? "" : fmt::format(", last step {}", rank.steps);
  const auto last = std::ranges::max_element(rank.groups, {}, &GroupPosition::enqueued);
  return last->enqueued == 0 || last->operation.empty()
             ? ""
             : fmt::format(", last {} #{}", last->operation, last->number);
}

// Ranks with equal keys wait in one call.
using CallKey = std::tuple<std::string, std::int64_t, std::string, std::string>;
CallKey key_of(const GroupPosition& call) {
  return {call.name, call.number, call.operation, call.shapes};
}

// Groups of ranks, the largest first.
std::vector<Ranks> by_call(const Ranks& waiting) {
  std::map<CallKey, Ranks> groups;
  for (const RankEvidence* const rank : waiting) groups[key_of(*wait_of(*rank))].push_back(rank);
  std::vector<Ranks> sorted;
  sorted.reserve(groups.size());
  for (auto& [key, ranks] : groups) sorted.push_back(std::move(ranks));
  std::ranges::stable_sort(sorted, std::greater{}, &Ranks::size);
  return sorted;
}

// "ranks 0, 1 wait in all_reduce #51"; of many calls the first few.
std::string waits_text(const Ranks& waiting) {
  constexpr std::size_t kMostCalls = 3;
  std::string text;
  const std::vector<Ranks> calls = by_call(waiting);
  for (std::size_t i = 0; i < std::min(calls.size(), kMostCalls); ++i) {
    text += fmt::format("{}{} wait{} in {}", i == 0 ? "" : ", ", named(calls[i]),
                        calls[i].size() == 1 ? "s" : "", call_text(*wait_of(*calls[i].front())));
  }
  return text + (calls.size() > kMostCalls ? ", …" : "");
}

std::string what_it_does(const Ranks& blamed, VerdictKind kind) {
  const RankEvidence& first = *blamed.front();
  const bool is_one = blamed.size() == 1;
  const char* const is = is_one ? "is" : "are";
  const char* const does = is_one ? "does" : "do";
  switch (kind) {
    case VerdictKind::kNothingDone:
      return fmt::format("{} nothing{}{}", does, at(first), last_call(first));
    case VerdictKind::kHeld:
      return fmt::format("{} nothing, and no Python runs in it: a call holds the interpreter{}{}",
                         does, at(first), last_call(first));
    case VerdictKind::kStopped:
      return fmt::format("{} {} from outside", is,
                         first.activity == Activity::kFrozen
                             ? "frozen: the cgroup was frozen"
                             : "stopped: it got SIGSTOP or SIGTSTP");
    case VerdictKind::kInKernel:
      return fmt::format("{} stuck in the kernel{}{}", is, with(" in ", first.detail), at(first));
    case VerdictKind::kMissing:
      return (is_one ? "has ended" : "have ended") + last_call(first);
    case VerdictKind::kBusy:
      return (is_one ? "works" : "work") + with(": ", first.detail) + at(first);
    case VerdictKind::kNone:
    case VerdictKind::kDesynchronised:
    case VerdictKind::kAllWait:
      break;
  }
  return {};
}

// ---- the verdict ----

VerdictKind kind_of(Activity activity) {
  switch (activity) {
    case Activity::kUnknown:
      return VerdictKind::kNone;
    case Activity::kBusy:
    case Activity::kTraced:
      return VerdictKind::kBusy;
    case Activity::kIdle:
      return VerdictKind::kNothingDone;
    case Activity::kSilent:
      return VerdictKind::kHeld;
    case Activity::kInKernel:
      return VerdictKind::kInKernel;
    case Activity::kStopped:
    case Activity::kFrozen:
      return VerdictKind::kStopped;
    case Activity::kEnded:
      return VerdictKind::kMissing;
  }
  return VerdictKind::kNone;
}

// The first kind for which there is a rank is the verdict. A rank that works may yet come. Idle
// ones may wait for it in a way that nobody sees, so it comes before them.
constexpr std::array kInOrder{VerdictKind::kStopped,     VerdictKind::kInKernel,
                              VerdictKind::kMissing,     VerdictKind::kBusy,
                              VerdictKind::kNothingDone, VerdictKind::kHeld};

Ranks of_kind(Ranks ranks, VerdictKind kind) {
  std::erase_if(ranks,
                [kind](const RankEvidence* rank) { return kind_of(rank->activity) != kind; });
  return ranks;
}

bool is_busy(const RankEvidence* rank) { return rank->activity == Activity::kBusy; }

// Not if one that is waited for could not be seen. A slow disk makes a process wait in the kernel,
// too.
bool is_certain(const Standstill& all, const Ranks& awaited, VerdictKind kind) {
  const bool is_seen = std::ranges::none_of(
      awaited, [](const RankEvidence* rank) { return rank->activity == Activity::kUnknown; });
  return is_seen && kind != VerdictKind::kInKernel && !all.waiting().empty() &&
         !all.waits_for_unknown_ranks();
}

// One that has ended cannot be ended. A rank that waits for it can.
int rank_to_end(const Ranks& blamed, const Ranks& waiting, VerdictKind kind) {
  if (kind != VerdictKind::kMissing) return blamed.front()->rank;
  const auto found = std::ranges::find_if_not(waiting, is_busy);
  return found == waiting.end() ? -1 : (*found)->rank;
}

Verdict blame(const Standstill& all, const Ranks& candidates) {
  const Ranks waiting = all.waiting();
  for (const VerdictKind kind : kInOrder) {
    const Ranks blamed = of_kind(candidates, kind);
    if (blamed.empty()) continue;
    const std::string waits = waiting.empty() ? "" : "; " + waits_text(waiting);
    return {.kind = kind,
            .is_certain = is_certain(all, candidates, kind),
            .ranks = numbers(blamed),
            .rank_to_end = rank_to_end(blamed, waiting, kind),
            .sentence = fmt::format("{} {}{}", subject(blamed, all.known()),
                                    what_it_does(blamed, kind), waits)};
  }
  return {};
}

bool waits_unseen(const RankEvidence* rank) {
  return rank->activity == Activity::kUnknown && !rank->detail.empty();
}

bool does_nothing(const RankEvidence* rank) {
  return rank->activity == Activity::kIdle || rank->activity == Activity::kSilent;
}

// Ranks make groups before they train, and may come to that at very unlike times.
bool is_at_work(const RankEvidence* rank) {
  return rank->steps > 0 || (waits_unseen(rank) && rank->detail != "new_group" &&
                             !rank->detail.starts_with("init_process_group"));
}

// "; rank 0 waits in new_group". Before the first step ranks may wait long for each other.
Verdict blame_beside_unseen_waits(const Standstill& all, const Ranks& blamed, Ranks known) {
  std::erase_if(known, [](const RankEvidence* rank) { return !waits_unseen(rank); });
  Verdict verdict = blame(all, blamed);
  if (known.empty()) return verdict;
  verdict.is_certain = std::ranges::any_of(known, is_at_work);
  if (verdict.kind == VerdictKind::kMissing) verdict.rank_to_end = known.front()->rank;
  verdict.sentence += fmt::format("; {} wait{} in {}", named(known), known.size() == 1 ? "s" : "",
                                  known.front()->detail);
  return verdict;
}

// Nobody is seen to wait. A stopped process is one for sure; and if all that have made a group do
// nothing, that is odd.
Verdict judge_without_waits(const Standstill& all) {
  const Ranks known = all.known();
  for (const VerdictKind kind : {VerdictKind::kStopped, VerdictKind::kInKernel})
    if (const Ranks blamed = of_kind(known, kind); !blamed.empty()) return blame(all, blamed);
  const Ranks busy = of_kind(known, VerdictKind::kBusy);
  if (!busy.empty()) return blame(all, busy);
  Ranks idle = known;
  std::erase_if(idle, [](const RankEvidence* rank) { return !does_nothing(rank); });
  // The others may wait for one that has ended.
  const bool is_waited = std::ranges::any_of(known, waits_unseen);
  const Ranks ended = of_kind(known, VerdictKind::kMissing);
  if (is_waited && idle.empty()) idle = ended;
  const bool is_still = std::ranges::all_of(known, [&](const RankEvidence* rank) {
    return does_nothing(rank) || waits_unseen(rank) ||
           (is_waited && rank->activity == Activity::kEnded);
  });
  const bool has_groups = std::ranges::any_of(known, [](const RankEvidence* rank) {
    return !rank->groups.empty() || rank->steps > 0 || waits_unseen(rank);
  });
  if (!is_still || !has_groups || idle.empty() || !all.is_complete()) return {};
  return blame_beside_unseen_waits(all, idle, known);
}

// "rank 1 waits in barrier #50 at f (a.py:3), the others in all_reduce #50 at g (a.py:9)"
std::string parted_text(const std::vector<Ranks>& calls, const Ranks& all) {
  constexpr std::size_t kMostCalls = 4;
  std::string text;
  for (std::size_t i = std::min(calls.size(), kMostCalls); i-- > 1;) {
    const RankEvidence& first = *calls[i].front();
    text += fmt::format("{} wait{} in {}{}, ", subject(calls[i], all),
                        calls[i].size() == 1 ? "s" : "", call_text(*wait_of(first)), at(first));
  }
  const RankEvidence& first = *calls.front().front();
  const bool is_rest = calls.size() == 2 && calls.front().size() > 1;
  return text + fmt::format("{} in {}{}", is_rest ? "the others" : subject(calls.front(), all),
                            call_text(*wait_of(first)), at(first));
}

// All that are waited for wait in another call. The fewer have parted from the many.
Verdict desynchronised(const Standstill& all) {
  const std::vector<Ranks> calls = by_call(all.waiting());
  Verdict verdict{.kind = VerdictKind::kDesynchronised,
                  .is_certain = all.is_complete(),
                  .sentence = parted_text(calls, all.known())};
  const bool is_tie = calls.size() > 1 && calls[0].size() == calls[1].size();
  for (std::size_t i = is_tie ? 0 : 1; i < calls.size(); ++i) {
    const std::vector<int> some = numbers(calls[i]);
    verdict.ranks.insert(verdict.ranks.end(), some.begin(), some.end());
  }
  std::ranges::sort(verdict.ranks);
  verdict.rank_to_end = verdict.ranks.empty() ? -1 : verdict.ranks.front();
  return verdict;
}

// Calls whose shapes may differ from rank to rank.
bool may_differ(const std::string& operation) {
  for (const char* const part : {"gather", "scatter", "all_to_all", "alltoall"})
    if (operation.find(part) != std::string::npos) return true;
  return false;
}

// As the flight recorder and the witness name it: "recv 0<-1", "a receive from rank 1".
bool is_receive(const GroupPosition& call) {
  return call.operation.starts_with("recv") || call.operation.starts_with("a receive");
}

// Two partners that both send or both receive.
bool is_same_half(const Ranks& waiting) {
  std::map<int, const GroupPosition*> calls;
  for (const RankEvidence* const rank : waiting) calls[rank->rank] = wait_of(*rank);
  return std::ranges::any_of(waiting, [&calls](const RankEvidence* rank) {
    const GroupPosition& call = *wait_of(*rank);
    if (call.name != kPointToPoint || call.ranks.empty()) return false;
    const auto partner = calls.find(call.ranks.front());
    if (partner == calls.end() || partner->second->name != kPointToPoint) return false;
    return is_receive(*partner->second) == is_receive(call);
  });
}

// Ranks in the same call of a group, with another operation or another size.
bool is_mismatch(const Ranks& waiting) {
  if (is_same_half(waiting)) return true;
  std::map<std::pair<std::string, std::int64_t>, const GroupPosition*> first;
  return std::ranges::any_of(waiting, [&first](const RankEvidence* rank) {
    const GroupPosition& call = *wait_of(*rank);
    if (call.name == kPointToPoint) return false;
    const auto [place, is_new] = first.try_emplace({call.name, call.number}, &call);
    const GroupPosition& other = *place->second;
    return call.operation != other.operation ||
           (call.shapes != other.shapes && !may_differ(call.operation));
  });
}

// A rank need not wait in the call that is under way. One that works may yet come.
Verdict judge_waits(const Standstill& all) {
  const Ranks awaited = all.awaited();
  if (!awaited.empty()) return blame(all, awaited);
  const Ranks waiting = all.waiting();
  if (all.waits_for_unknown_ranks()) return {};
  const Ranks busy = of_kind(all.known(), VerdictKind::kBusy);
  if (!busy.empty()) return blame(all, busy);
  if (is_mismatch(waiting) || all.is_anyone_waited_for()) return desynchronised(all);
  if (!all.is_complete() || waiting.size() != all.known().size()) return {};
  return {.kind = VerdictKind::kAllWait,
          .is_certain = false,
          .sentence = waits_text(waiting) + at(*waiting.front()) +
                      ": all have come, and the network or a device does not go on"};
}

}  // namespace

std::string_view name_of(Activity activity) {
  constexpr std::array<std::string_view, 9> kNames{"unknown", "busy",   "idle",   "silent", "stuck",
                                                   "stopped", "frozen", "traced", "ended"};
  return kNames.at(static_cast<std::size_t>(activity));
}

std::string_view name_of(VerdictKind kind) {
  constexpr std::array<std::string_view, 9> kNames{"none",           "busy",    "nothing done",
                                                   "desynchronised", "missing", "stopped",
                                                   "in kernel",      "held",    "all wait"};
  return kNames.at(static_cast<std::size_t>(kind));
}

bool Verdict::may_be_acted_on() const {
  const bool is_hang = kind == VerdictKind::kNothingDone || kind == VerdictKind::kHeld ||
                       kind == VerdictKind::kDesynchronised || kind == VerdictKind::kMissing;
  return is_certain && is_hang && rank_to_end >= 0;
}

Verdict judge(const std::vector<RankEvidence>& evidence, int world_size) {
  const Standstill all(evidence, world_size);
  return all.waiting().empty() ? judge_without_waits(all) : judge_waits(all);
}

}  // namespace ddprun::rendezvous
