// The name of a bucket in messages and in the flight record.
#pragma once

#include <ddprun/collective.h>

#include <cstddef>

namespace ddprun::worker {

// "bucket 3".
OperationName name_of_bucket(std::size_t index);

}  // namespace ddprun::worker
