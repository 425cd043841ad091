// The messages of a pass that cannot go on. Pure: they say what GradientReducer has found.
#pragma once

#include <ddprun/data_parallel.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "worker/training/data_parallel/bucket_plan.h"
#include "worker/training/data_parallel/module_state.h"

namespace ddprun::worker {

// The pass that a message speaks of.
struct PassName {
  std::uint64_t number;
  int rank;
  const std::vector<NamedTensor>& parameters;
};

std::string second_backward(const PassName& pass);
std::string second_gradient(const PassName& pass, std::size_t parameter);
std::string graph_has_changed(const PassName& pass, std::size_t parameter);

// The pass ended with an error. `done`: how many buckets of the plan have their averages.
std::string ended_with_error(const PassName& pass, const BucketPlan& plan, std::size_t done);
// backward() gave no gradients to these parameters. If there are none, the sums are not complete.
std::string ended_early(const PassName& pass, const std::vector<std::size_t>& missing);

// How far a rank is, as it tells the others in reset().
struct Progress {
  std::uint64_t passes_summed;
  std::uint64_t steps;
  std::uint64_t rebuilt;             // 1, if its buckets are
  std::uint64_t parameters_stepped;  // of the pass that is given up
  bool operator==(const Progress&) const = default;
};
// Says why the pass cannot be given up. Nothing if all ranks are equally far.
std::optional<std::string> parted_in_reset(std::span<const Progress> ranks, int rank);

}  // namespace ddprun::worker
