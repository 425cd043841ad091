// The bound of a PEM file: a certificate with its chain, or a key.
#pragma once

#include <cstddef>

namespace ddprun {

// Bytes. A longer file is refused before it is read.
inline constexpr std::size_t kMaxPemBytes = 1 << 20;

}  // namespace ddprun
