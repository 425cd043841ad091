// The pieces of an operation on tensors, in the order in which they travel.
#pragma once

#include <ddprun/tensor_collective.h>

#include <cstddef>
#include <cstdint>
#include <functional>

namespace ddprun {

namespace worker {

// A large tensor travels in pieces: the memory of one is used again for the next but one.
inline constexpr std::int64_t kPieceBytes = std::int64_t{64} << 20;

// A row in a piece has a multiple of so many bytes, so that rows are aligned. That of the last
// piece may be shorter.
inline constexpr std::int64_t kRowUnit = 512;

}  // namespace worker

struct TensorCollective::Plan {
  const char* operation = "";
  std::int64_t pieces = 0;
  std::function<Work::Piece(std::int64_t piece)> launch{};
  std::function<void()> finish{};
};

}  // namespace ddprun
