// Copies between the buffers of ranks. Any thread.
#pragma once

#include <ddprun/collective.h>

#include <cstddef>

namespace ddprun::worker {

// From here on a copy goes past the caches. It would not stay in them, and each line of `to` need
// not be read before it is written.
inline constexpr std::size_t kLargeCopyBytes = std::size_t{2} << 20;

// Copies as memcpy() does. The two must not overlap.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes);

// Copies a transfer's elements into the receiver's `flat`. `from`: the first byte of the sender's.
void copy_elements(const Flat& flat, const Transfer& one, const std::byte* from);

}  // namespace ddprun::worker
