// The groups of ranks in a grid. Pure.
#pragma once

#include <ddprun/collective.h>

#include <cstddef>
#include <span>

#include "worker/collective/core/split.h"

namespace ddprun::worker {

// Throws std::invalid_argument, in one line, unless the product of the axes is the number of ranks.
// Each must have a name of its own.
void check_axes(std::span<const MeshAxis> axes, int ranks);

// Returns the group of `rank` along axes[axis], and its place there. Ranks with one color differ in
// that axis alone. The last axis counts fastest.
SplitRequest mesh_place(std::span<const MeshAxis> axes, std::size_t axis, int rank);

}  // namespace ddprun::worker
