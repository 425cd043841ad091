// The order in which a sum over ranks is evaluated. It is the order of Gloo's ring all-reduce
// (gloo/allreduce.cc, as in PyTorch 2.11). So our sums equal those of PyTorch with Gloo bit for
// bit. Floating-point addition is not associative: with three or more ranks another order gives
// other bits. Pure arithmetic, any thread.
#pragma once

#include <algorithm>
#include <cstddef>

namespace ddprun::worker {

// Bytes [begin, end) of a buffer.
struct Chunk {
  std::size_t begin = 0;
  std::size_t end = 0;

  bool operator==(const Chunk&) const = default;
};

// Gloo cuts a buffer into segments. A segment has at most so many bytes.
inline constexpr std::size_t kSegmentBytesMax = std::size_t{1} << 20;

// Chunk `index` (0 … world-1) of a buffer of `bytes` with elements of `element_bytes`. The
// chunks are in order, do not overlap and cover the buffer; the last ones may be empty. Rank
// `index` sums this chunk. Any rank could: the bits do not depend on who adds.
//
// An element of chunk c is x[c] + (x[c+1] + (… + (x[c-2] + x[c-1]))). There x[r] is the element
// of rank r. Ranks are counted modulo world. The innermost pair is added first.
inline Chunk ring_chunk(std::size_t bytes, std::size_t element_bytes, std::size_t world,
                        std::size_t index) {
  const auto divide_up = [](std::size_t n, std::size_t by) { return (n + by - 1) / by; };
  const std::size_t segments_wanted = std::max(divide_up(bytes, kSegmentBytesMax), 2 * world);
  const std::size_t segments = divide_up(segments_wanted, world) * world;
  const std::size_t segment = divide_up(divide_up(bytes, segments), element_bytes) * element_bytes;
  const std::size_t chunk = segment * (segments / world);
  return {std::min(bytes, index * chunk), std::min(bytes, (index + 1) * chunk)};
}

}  // namespace ddprun::worker
