// The steps of LocalSgd that end with an average of parameters, and over which ranks. Pure. The
// training thread.
#pragma once

#include <ddprun/local_sgd.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace ddprun::worker {

class AverageSchedule {
 public:
  // Throws std::invalid_argument, and names the option, unless the options fit `world_size` ranks.
  AverageSchedule(const LocalSgdOptions& options, int world_size);

  // The index of the level whose average step number `step`, from 0, ends with; nothing: of none.
  // PyTorch's averagers count in the same way.
  std::optional<std::size_t> due(std::int64_t step) const;

  // The levels, that of all ranks last. `period` of the options is one of them.
  const std::vector<AverageLevel>& levels() const { return levels_; }

 private:
  std::int64_t warmup_steps_;
  std::int64_t first_step_ = 0;  // from which periods count
  std::vector<AverageLevel> levels_;
};

}  // namespace ddprun::worker
