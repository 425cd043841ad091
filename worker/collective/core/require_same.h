// Whether all ranks hold the same state, by a number such as the checksum of their weights. All
// ranks must call it, on the training thread. Owns nothing.
#pragma once

#include <cstdint>
#include <string_view>

#include "worker/collective/core/collective.h"

namespace ddprun::worker {

// Throws std::runtime_error on all ranks unless all have the same number. The error names `what`
// and the first rank that differs from rank 0.
void require_same(Collective& ranks, std::uint64_t mine, std::string_view what);

}  // namespace ddprun::worker
