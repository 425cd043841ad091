#include "worker/collective/kernels/copy_kernels.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include <cstdint>
#include <cstring>

namespace ddprun::worker {
namespace {

constexpr std::size_t kLineBytes = 64;

#if defined(__x86_64__)
// Copies whole lines, to a place at the begin of one.
void stream_lines(std::byte* to, const std::byte* from, std::size_t bytes) {
  constexpr std::size_t kStep = sizeof(__m128i);
  for (std::size_t line = 0; line < bytes; line += kLineBytes) {
    for (std::size_t i = line; i < line + kLineBytes; i += kStep)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
  _mm_sfence();  // whoever hears that the copy is done finds it
}
#else
// Other processors notice a stream of stores, and read no line that is written as a whole.
void stream_lines(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}
#endif

}  // namespace

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes < kLargeCopyBytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return;
  }
  const std::size_t head =
      (kLineBytes - reinterpret_cast<std::uintptr_t>(to) % kLineBytes) % kLineBytes;
  const std::size_t lines = (bytes - head) / kLineBytes * kLineBytes;
  std::memcpy(to, from, head);
  stream_lines(to + head, from + head, lines);
  std::memcpy(to + head + lines, from + head + lines, bytes - head - lines);
}

void copy_elements(const Flat& flat, const Transfer& one, const std::byte* from) {
  const std::size_t size = size_of(flat.dtype);
  copy_bytes(static_cast<std::byte*>(flat.data) + one.target * size, from + one.begin * size,
             (one.end - one.begin) * size);
}

}  // namespace ddprun::worker
