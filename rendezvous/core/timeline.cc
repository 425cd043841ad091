#include "rendezvous/core/timeline.h"

#include <algorithm>
#include <utility>

namespace ddprun::rendezvous {

void Timeline::round_began(std::int64_t round, int workers, std::int64_t unix_ms) {
  round_ended(unix_ms);
  add({.kind = PeriodKind::kRound, .begin_ms = unix_ms, .round = round, .workers = workers});
}

void Timeline::round_ended(std::int64_t unix_ms) {
  went_on(unix_ms);
  end(PeriodKind::kRound, unix_ms);
}

void Timeline::stands_still(const std::string& text, const std::vector<int>& ranks,
                            std::int64_t unix_ms) {
  if (Period* const known = lasting(PeriodKind::kStandstill)) {
    known->text = text;
    known->ranks = ranks;
    return;
  }
  const Period* const round = lasting(PeriodKind::kRound);
  add({.kind = PeriodKind::kStandstill,
       .begin_ms = unix_ms,
       .round = round == nullptr ? 0 : round->round,
       .text = text,
       .ranks = ranks});
}

void Timeline::went_on(std::int64_t unix_ms) { end(PeriodKind::kStandstill, unix_ms); }

Period* Timeline::lasting(PeriodKind kind) {
  const auto found = std::ranges::find_if(
      periods_, [kind](const Period& one) { return one.kind == kind && one.lasts(); });
  return found == periods_.end() ? nullptr : &*found;
}

// A round that lasts stays, however many standstills it has.
void Timeline::add(Period period) {
  periods_.push_back(std::move(period));
  if (periods_.size() <= kMostPeriods) return;
  periods_.erase(std::ranges::find_if(periods_, [](const Period& one) { return !one.lasts(); }));
}

// The wall clock may have been set back meanwhile. Ranks are many, and nobody needs them later.
void Timeline::end(PeriodKind kind, std::int64_t unix_ms) {
  Period* const known = lasting(kind);
  if (known == nullptr) return;
  known->end_ms = std::max(unix_ms, known->begin_ms);
  known->ranks = std::vector<int>();
}

}  // namespace ddprun::rendezvous
