// The sums of NCCL's kernels, for all types and reductions. Each addition rounds to the type. An
// average multiplies by 1/n first. Ranks are added in their order.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <vector>

namespace ddprun::worker::sim {

std::size_t size_of(ncclDataType_t type);
// Reduces `count` elements of each rank. Returns the bytes.
std::vector<std::byte> reduced(const std::vector<const void*>& ranks, std::size_t count,
                               ncclDataType_t type, ncclRedOp_t reduction);

}  // namespace ddprun::worker::sim
