#include "agent/monitors/step_history.h"

#include <algorithm>

#include "base/duration.h"

namespace ddprun::agent {

void StepHistory::note(const std::vector<WorkerProgress>& workers, Time now) {
  if (workers_.size() < workers.size()) workers_.resize(workers.size());
  for (std::size_t i = 0; i < workers.size(); ++i) note_one(workers_[i], workers[i], now);
}

// The time of a step is that between two last steps: the times of our looks do not matter.
void StepHistory::note_one(Worker& worker, const WorkerProgress& progress, Time now) {
  if (progress.steps < worker.steps) worker.last_step = {};
  const std::uint64_t before = progress.steps < worker.steps ? 0 : worker.steps;
  const auto done = static_cast<double>(progress.steps - before);
  if (worker.when != Time{} && now > worker.when) {
    Sample sample{.when = now, .per_second = done / in_seconds(now - worker.when)};
    if (done > 0 && worker.last_step != Time{})
      sample.step_s = in_seconds(progress.last_step - worker.last_step) / done;
    worker.samples.push_back(sample);
  }
  while (!worker.samples.empty() && now - worker.samples.front().when > http::kChartLength)
    worker.samples.pop_front();
  worker.steps = progress.steps;
  worker.last_step = progress.last_step;
  worker.when = now;
}

std::vector<http::StepSample> StepHistory::of(std::size_t local_rank, Time now) const {
  std::vector<http::StepSample> samples;
  if (local_rank >= workers_.size()) return samples;
  for (const Sample& one : workers_[local_rank].samples)
    samples.push_back({.age_s = std::max(in_seconds(now - one.when), 0.0),
                       .per_second = one.per_second,
                       .step_s = one.step_s});
  return samples;
}

}  // namespace ddprun::agent
