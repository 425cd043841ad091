#include "worker/collective/kernels/bfloat16_kernels.h"

#include <cstddef>

#include "worker/collective/kernels/clones.h"
#include "worker/collective/kernels/elements.h"

namespace ddprun::worker {

DDPRUN_CLONES void to_bfloat16(std::span<const float> from, std::span<std::uint16_t> to) {
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = float_to_bfloat16(from[i]);
}

DDPRUN_CLONES void from_bfloat16(std::span<const std::uint16_t> from, std::span<float> to) {
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = bfloat16_to_float(from[i]);
}

}  // namespace ddprun::worker
