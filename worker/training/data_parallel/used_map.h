// The parameters that got a gradient on some rank. Each rank marks its own; one sum of a pass adds
// the marks of all ranks. A parameter that nobody used keeps its `.grad` as it is; one that only
// others used takes their average. GradientReducer owns it and calls it from the thread that runs
// backward().
#pragma once

#include <ATen/core/Tensor.h>
#include <ddprun/collective.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace ddprun::worker {

class UsedMap {
 public:
  // All ranks must call it. `device`: the collective's.
  UsedMap(std::size_t parameters, at::Device device, Collective& collective);

  // This rank used it, in this pass or in a pass before whose gradients were not summed.
  void mark(std::size_t parameter) { used_.at(parameter) = 1; }

  // Starts the sum. All ranks must call it.
  void launch_sum();

  // Waits for the sum, if one is under way. All ranks must call it. On CUDA this rank reads it, and
  // so waits for its GPU, only where it has left a parameter out.
  void finish();

  // Returns whether any rank used the parameter. The result of a sum stays until clear().
  bool anywhere(std::size_t parameter) const { return used_.at(parameter) != 0; }

  // Nobody has used anything. Call it when no sum is under way.
  void clear();

  // Forgets a sum that no rank waits for any more, and clears.
  void drop_sum();

 private:
  Collective& collective_;
  std::vector<std::int32_t> used_;  // by parameter: this rank's marks; after the sum all ranks'
  at::Tensor summed_;               // in memory of the collective
  std::optional<Ticket> under_way_;
};

}  // namespace ddprun::worker
