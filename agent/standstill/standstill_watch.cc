#include "agent/standstill/standstill_watch.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace ddprun::agent {
namespace {

constexpr std::size_t kGapsKept = 64;

// A phase that was taken for a standstill once may be a little longer the next time.
constexpr double kMargin = 1.25;

bool can_be_judged(const WorkerSight& sight) {
  return sight.lives && (sight.has_witness || sight.steps > 0);
}

// How long a job is quiet before a verdict that is seen twice is believed.
std::chrono::seconds patience_for(const rendezvous::Verdict& verdict) {
  const bool may_wait_unseen = verdict.kind == rendezvous::VerdictKind::kNothingDone ||
                               verdict.kind == rendezvous::VerdictKind::kHeld;
  return may_wait_unseen && !verdict.is_certain ? StandstillWatch::kQuietTogether
                                                : StandstillWatch::kShortest;
}

}  // namespace

void StandstillWatch::attempt_begins(std::size_t workers, Time now) {
  workers_.assign(workers, {.quiet_since = now});
  looked_ = now;
  suspected_.reset();
  quiet_since_.reset();
  seen_once_.clear();
  told_.clear();
}

void StandstillWatch::moved(Worker& worker, Time when) {
  worker.quiet_since = std::max(when, worker.quiet_since);
  worker.look_after = std::chrono::nanoseconds(0);
}

// A step that was done since the last look was done at its own time, not now.
void StandstillWatch::look_at(Worker& worker, const WorkerSight& sight, Time now) {
  if (sight.steps != worker.steps) {
    const auto done = static_cast<std::int64_t>(sight.steps - worker.steps);
    if (worker.last_step != Time{} && done > 0)
      gaps_.push_back((sight.last_step - worker.last_step) / done);
    if (gaps_.size() > kGapsKept) gaps_.pop_front();
    moved(worker, sight.last_step);
  }
  const std::chrono::duration<double> used = sight.cpu - worker.cpu;
  const std::chrono::duration<double> passed = now - looked_;
  if (sight.steps == 0 && used > passed * kIdleCpu) moved(worker, now);
  worker.is_judged = can_be_judged(sight);
  if (!worker.is_judged) moved(worker, now);
  worker.steps = sight.steps;
  worker.last_step = sight.last_step;
  worker.cpu = sight.cpu;
}

std::chrono::nanoseconds StandstillWatch::bound(const Worker& worker) const {
  std::chrono::nanoseconds least = std::max<std::chrono::nanoseconds>(kShortest, learned_);
  if (!gaps_.empty()) least = std::max(least, kStepsMissed * std::ranges::max(gaps_));
  return std::max(least, worker.look_after);
}

std::chrono::nanoseconds StandstillWatch::quiet_for(Time now) const {
  std::chrono::nanoseconds longest{0};
  for (const Worker& worker : workers_)
    if (worker.is_judged)
      longest = std::max<std::chrono::nanoseconds>(longest, now - worker.quiet_since);
  return longest;
}

bool StandstillWatch::looked(const std::vector<WorkerSight>& workers, Time now) {
  for (std::size_t i = 0; i < std::min(workers.size(), workers_.size()); ++i)
    look_at(workers_[i], workers[i], now);
  looked_ = now;
  look_whether_it_went_on();
  if (suspected_ && now < *suspected_ + kVerdictLimit) return false;
  const bool is_quiet = std::ranges::any_of(workers_, [&](const Worker& worker) {
    return worker.is_judged && now - worker.quiet_since >= bound(worker);
  });
  if (is_quiet) suspected_ = now;
  return is_quiet;
}

// It did if all workers that live have moved since people heard of it.
void StandstillWatch::look_whether_it_went_on() {
  Time moved = Time::max();
  for (const Worker& worker : workers_)
    if (worker.is_judged) moved = std::min(moved, worker.quiet_since);
  if (moved == Time::max()) return;
  if (quiet_for(looked_) < kShortest) {
    seen_once_.clear();
    told_.clear();
  }
  if (!quiet_since_ || moved <= told_at_) return;
  went_on_ = moved - *quiet_since_;
  learned_ = std::chrono::duration_cast<std::chrono::nanoseconds>(*went_on_ * kMargin);
  quiet_since_.reset();
}

// Without steps only the numbers of the calls tell that a job goes on, and the verdict has them.
bool StandstillWatch::counts_steps() const {
  return std::ranges::any_of(workers_, [](const Worker& worker) { return worker.steps > 0; });
}

bool StandstillWatch::may_act(const rendezvous::Verdict& verdict, Time now) {
  if (!verdict.may_be_acted_on() || !is_second_) return false;
  std::chrono::nanoseconds patience = kShortest;
  if (acted_ > 0) patience = kQuietAgain * (1 << std::min(acted_ - 1, 10));
  const bool is_quiet = std::ranges::all_of(workers_, [&](const Worker& worker) {
    return !worker.is_judged || now - worker.quiet_since >= patience;
  });
  if (is_quiet) ++acted_;
  return is_quiet;
}

// A worker that is quiet has as long again before the next look.
StandstillWatch::Belief StandstillWatch::verdict_came(const rendezvous::Verdict& verdict,
                                                      Time now) {
  suspected_.reset();
  for (Worker& worker : workers_)
    if (now - worker.quiet_since >= kShortest) worker.look_after = 2 * (now - worker.quiet_since);
  if (!verdict.is_alarm()) return Belief::kNone;
  is_second_ = std::exchange(seen_once_, verdict.sentence) == verdict.sentence;
  const bool is_sure = verdict.is_certain && counts_steps();
  const bool is_believed = is_sure || (is_second_ && quiet_for(now) >= patience_for(verdict));
  if (told_ == verdict.sentence) return is_believed ? Belief::kKnown : Belief::kNone;
  if (!is_believed) return Belief::kLookAgain;
  if (!quiet_since_ && quiet_for(now) >= kShortest) quiet_since_ = now - quiet_for(now);
  told_at_ = now;
  told_ = verdict.sentence;
  return Belief::kNew;
}

std::optional<std::chrono::nanoseconds> StandstillWatch::went_on_after() {
  return std::exchange(went_on_, std::nullopt);
}

}  // namespace ddprun::agent
