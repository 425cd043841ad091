// Assigns each parameter to the rank that steps it, as ZeroRedundancyOptimizer of PyTorch 2.11 does
// (torch/distributed/optim/zero_redundancy_optimizer.py, _partition_parameters). Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ddprun::worker {

// The owners of one group's parameters, by parameter.
using Owners = std::vector<int>;

// `groups`: the element counts of each group's parameters. In each group the largest comes first,
// equal ones in their order. Each goes to the rank with the fewest elements so far, of all groups.
// If several ranks have as few, it is the lowest. The order of a rank's parameters is that in which
// it got them: owned_by().
std::vector<Owners> partition(std::span<const std::vector<std::int64_t>> groups, int ranks);

// The parameters of a group that `rank` owns, in the order of Python's local optimizer: the largest
// first.
std::vector<std::size_t> owned_by(int rank, const Owners& owners,
                                  const std::vector<std::int64_t>& counts);

}  // namespace ddprun::worker
