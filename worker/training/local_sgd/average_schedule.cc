#include "worker/training/local_sgd/average_schedule.h"

#include <fmt/format.h>

#include <stdexcept>

namespace ddprun::worker {

namespace {

void require(bool fits, const std::string& message) {
  if (!fits) throw std::invalid_argument("LocalSgd: " + message);
}

void check_group(const char* option, int ranks, int world_size) {
  require(ranks >= 1 && world_size % ranks == 0,
          fmt::format("{} {} given, expected a number that divides the {} ranks", option, ranks,
                      world_size));
}

void check_levels(const std::vector<AverageLevel>& levels, int world_size) {
  AverageLevel before;
  for (const AverageLevel& level : levels) {
    check_group("ranks of a level", level.ranks, world_size);
    require(level.period > before.period && level.ranks > before.ranks,
            fmt::format("levels: period {} with {} ranks stands behind period {} with {} ranks; "
                        "both must grow",
                        level.period, level.ranks, before.period, before.ranks));
    before = level;
  }
  require(
      before.ranks == world_size,
      fmt::format("levels: the last one has {} ranks, expected all {}", before.ranks, world_size));
}

}  // namespace

AverageSchedule::AverageSchedule(const LocalSgdOptions& options, int world_size)
    : warmup_steps_(options.warmup_steps), levels_(options.levels) {
  require(warmup_steps_ >= 0,
          fmt::format("warmup_steps {} given, expected 0 or more", warmup_steps_));
  check_group("gradient_ranks", options.gradient_ranks, world_size);
  if (!levels_.empty()) {
    check_levels(levels_, world_size);
    return;
  }
  require(options.period >= 1, fmt::format("period {} given, expected 1 or more", options.period));
  levels_ = {{.period = options.period, .ranks = world_size}};
  first_step_ = warmup_steps_;
}

std::optional<std::size_t> AverageSchedule::due(std::int64_t step) const {
  if (step < warmup_steps_) return std::nullopt;
  for (std::size_t level = levels_.size(); level-- > 0;)
    if ((step - first_step_) % levels_[level].period == 0) return level;
  return std::nullopt;
}

}  // namespace ddprun::worker
