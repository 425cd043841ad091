#include <ddprun/join.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <stdexcept>

#include "base/log.h"
#include "worker/training/join/join_iteration.h"

namespace ddprun {

using namespace worker;

namespace {

constexpr int kManyIterations = 1000;  // PyTorch's

// Leaves the Join at the end of its scope.
class Leaving {
 public:
  explicit Leaving(const std::vector<Joinable*>& joinables) : joinables_(joinables) {}
  Leaving(const Leaving&) = delete;
  Leaving& operator=(const Leaving&) = delete;
  Leaving(Leaving&&) = delete;
  Leaving& operator=(Leaving&&) = delete;
  ~Leaving() {
    for (Joinable* joinable : joinables_) joinable->end_join();
  }

 private:
  const std::vector<Joinable*>& joinables_;
};

}  // namespace

JoinIteration JoinContext::meet(const JoinReport& mine) {
  over_ = true;  // unless all is well
  const auto reports = ranks_.all_gather_bytes(std::as_bytes(std::span(&mine, 1)));
  JoinIteration round = read_reports(reports);
  if (options_.throw_on_early_termination) {
    const std::string why = early_end(round, ranks_.rank(), mine.active);
    if (!why.empty()) throw std::runtime_error(why);
  }
  over_ = false;
  return round;
}

Join::Join(const JoinOptions& options, const std::vector<Joinable*>& joinables)
    : joinables_(joinables), exceptions_(std::uncaught_exceptions()) {
  if (joinables_.empty())
    throw std::invalid_argument("The join context manager requires at least one joinable");
  Collective& ranks = joinables_.front()->join_ranks();
  for (Joinable* joinable : joinables_) {
    if (&joinable->join_ranks() != &ranks)
      throw std::invalid_argument(
          "Using join context manager with multiple process groups: give all joinables one "
          "collective");
  }
  if (!options.enable) return;
  context_ = std::make_unique<JoinContext>(ranks, options);
  std::size_t begun = 0;
  try {
    for (; begun < joinables_.size(); ++begun) joinables_[begun]->begin_join(*context_, begun == 0);
  } catch (...) {
    while (begun > 0) joinables_[--begun]->end_join();
    throw;
  }
}

Join::~Join() noexcept(false) {
  if (!context_) return;
  const Leaving leaving(joinables_);
  if (std::uncaught_exceptions() > exceptions_ || context_->over()) return;
  shadow_the_others();
}

void Join::shadow_the_others() {
  for (int iterations = 0;; ++iterations) {
    const JoinIteration round = context_->meet({.active = false, .last = iterations == 0});
    if (round.active == 0) {
      for (Joinable* joinable : joinables_) joinable->settle(round.source);
      return;
    }
    if (iterations == kManyIterations) {
      log::warning(fmt::format(
          "Detected uneven input skew of greater than {}. This means that rank {} has at least {} "
          "fewer inputs than other currently-active ranks: it waits for them all that time.",
          kManyIterations, context_->ranks().rank(), kManyIterations));
    }
    for (Joinable* joinable : joinables_) joinable->shadow(round);
  }
}

}  // namespace ddprun
