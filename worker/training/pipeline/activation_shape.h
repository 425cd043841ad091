// The shape of a stage's activations, as it tells it the next stage, once. The receiver allocates
// by it. Pure.
#pragma once

#include <ddprun/collective.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ddprun::worker {

// The most dimensions of an activation. LibTorch's layers have 5 at most.
inline constexpr std::size_t kActivationDimsMax = 8;
// The most bytes of an activation. It bounds what a receiver allocates on a peer's word.
inline constexpr std::int64_t kActivationBytesMax = std::int64_t{1} << 36;

struct ActivationShape {
  Dtype dtype = Dtype::kFloat32;
  bool needs_gradient = false;  // it comes back
  std::vector<std::int64_t> sizes;

  bool operator==(const ActivationShape&) const = default;
};

// The shape as it travels: a mark, dtype, needs_gradient, number of sizes, sizes.
using ActivationWords = std::array<std::int64_t, 4 + kActivationDimsMax>;

// Returns "(4, 16) of float32".
std::string text_of(const ActivationShape& shape);

// Throws std::invalid_argument for a shape that is beyond the limits above.
ActivationWords to_words(const ActivationShape& shape);
// Throws CollectiveError for words that to_words() does not make.
ActivationShape from_words(const ActivationWords& words);

}  // namespace ddprun::worker
