#include "rendezvous/control/pages/job_periods.h"

#include <algorithm>

namespace ddprun::http {

WallTime wall_time(std::int64_t unix_ms) {
  constexpr std::int64_t kLatest = 7'258'118'400'000;  // the year 2200
  return WallTime(std::chrono::milliseconds(std::clamp<std::int64_t>(unix_ms, 0, kLatest)));
}

void add_period(const rendezvous::Period& period, JobStatus& job) {
  const bool is_round = period.kind == rendezvous::PeriodKind::kRound;
  job.periods.push_back({.is_round = is_round,
                         .begin = wall_time(period.begin_ms),
                         .round = period.round,
                         .workers = period.workers,
                         .text = period.text});
  if (!period.lasts()) job.periods.back().end = wall_time(period.end_ms);
  if (is_round || !period.lasts()) return;
  job.standstill = period.text;
  job.stuck_ranks = period.ranks;
  std::ranges::sort(job.stuck_ranks);
}

}  // namespace ddprun::http
