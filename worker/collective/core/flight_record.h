// The ring of operations for tools that read PyTorch's flight recorder. Pure, but for the clocks.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "worker/collective/core/operation_ring.h"

namespace ddprun::worker {

struct FlightRecordFacts {
  std::string_view collective = "shm";  // its name
  int rank = 0;
  int ranks = 1;
  std::chrono::milliseconds timeout{};
};

// JSON with the keys and values of version 2.10 (torch 2.11, c10d/FlightRecorder.hpp), and "name",
// what the program calls the operation. Sizes are numbers of elements: the ring knows no shapes. An
// operation is "started" until it is "completed": a sum whose wait() is not over is started.
std::string flight_record(const OperationRing& ring, const FlightRecordFacts& facts);

}  // namespace ddprun::worker
