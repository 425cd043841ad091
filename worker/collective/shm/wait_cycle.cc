#include "worker/collective/shm/wait_cycle.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "worker/collective/core/reached.h"

namespace ddprun::worker {
namespace {

// The counters that a rank can wait for, in the order of Waiting::counter.
constexpr std::array kCounters{&RankArea::launched, &RankArea::summed, &RankArea::posted,
                               &RankArea::taken,    &RankArea::chunks, &RankArea::chunks_read};

// Nothing if it does not wait, or what it waits for is there.
std::optional<WaitLook> look_at(const ControlView& view, std::size_t rank) {
  const Waiting& waiting = view.area(rank).waiting;
  const std::uint32_t sequence = waiting.sequence.load();
  const std::uint32_t peer = waiting.peer.load();
  const std::uint32_t counter = waiting.counter.load();
  const std::uint32_t target = waiting.target.load();
  const std::uint32_t operation = waiting.operation.load();
  const bool waits = sequence % 2 == 1 && waiting.sequence.load() == sequence;
  if (!waits || peer >= view.ranks || counter >= kCounters.size()) return std::nullopt;
  if (reached((view.area(peer).*kCounters.at(counter)).value.load(), target)) return std::nullopt;
  return WaitLook{.rank = rank, .sequence = sequence, .peer = peer, .operation = operation};
}

}  // namespace

WaitingMark::WaitingMark(Waiting& waiting, std::size_t peer, Counter RankArea::*counter,
                         std::uint32_t target, std::uint32_t operation)
    : waiting_(waiting) {
  const auto place = std::ranges::find(kCounters, counter) - kCounters.begin();
  waiting_.peer.store(static_cast<std::uint32_t>(peer));
  waiting_.counter.store(static_cast<std::uint32_t>(place));
  waiting_.target.store(target);
  waiting_.operation.store(operation);
  waiting_.sequence.fetch_add(1);
}

std::vector<WaitLook> cycle_of(const ControlView& view, std::size_t rank) {
  std::vector<WaitLook> cycle;
  for (std::size_t next = rank; cycle.empty() || next != rank; next = cycle.back().peer) {
    const auto look = look_at(view, next);
    // Longer than there are ranks: a cycle of others, which they will find.
    if (!look || cycle.size() == view.ranks) return {};
    cycle.push_back(*look);
  }
  std::rotate(cycle.begin(), std::ranges::min_element(cycle, {}, &WaitLook::rank), cycle.end());
  return cycle;
}

bool still_wait(const ControlView& view, const std::vector<WaitLook>& cycle) {
  return std::ranges::all_of(cycle, [&](const WaitLook& first) {
    const auto second = look_at(view, first.rank);
    return second && second->sequence == first.sequence;
  });
}

std::string describe(const ControlView& view, const std::vector<WaitLook>& cycle) {
  std::string text;
  for (const WaitLook& look : cycle) {
    text += fmt::format("{}rank {} waits in {} for rank {}", text.empty() ? "" : ", ", look.rank,
                        view.area(look.rank).operations.describe(look.operation), look.peer);
  }
  return text + ": they do different things, and none of them can go on";
}

}  // namespace ddprun::worker
