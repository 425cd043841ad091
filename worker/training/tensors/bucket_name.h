// The name of a bucket in messages and in the flight record.
#pragma once

#include <ddprun/collective.h>
#include <fmt/format.h>

#include <cstddef>

namespace ddprun::worker {

// "bucket 3".
inline OperationName name_of_bucket(std::size_t index) { return fmt::format("bucket {}", index); }

}  // namespace ddprun::worker
