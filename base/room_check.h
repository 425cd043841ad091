// Tells before the start whether this process may open enough descriptors, make enough threads and
// map enough memory. A library that cannot goes on without a word, or ends the process (gRPC does
// both). Any thread.
#pragma once

#include <cstddef>

#include "base/result.h"

namespace ddprun {

struct Room {
  int descriptors = 0;
  int threads = 0;
  std::size_t memory_bytes = 0;  // beside the stacks of the threads
};

// The needs of gRPC in a process that hosts or follows a rendezvous. It has 9 threads, and up to 3
// more for moments.
inline constexpr Room kGrpcRoom{.descriptors = 12, .threads = 12, .memory_bytes = 40U << 20U};

// Tries all of it and gives it back, which takes some 0.2 ms. If memory is limited (`ulimit -v`),
// malloc keeps to one arena from then on. Each one takes 64 MiB of addresses. The error (kLimit)
// names the limit.
Result<void> check_room(const Room& needed);

}  // namespace ddprun
