// Numbers, bytes and words that nobody can guess, for names, seeds and secrets. Not
// std::random_device: its constructor asks the CPU what it can do, and that traps in a virtual
// machine. Any thread.
#pragma once

#include <sys/random.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/assert.h"

namespace ddprun {

// The most bytes that come whole from one call (getrandom(2)).
inline constexpr std::size_t kMostRandomBytes = 256;

// Fills `size` bytes, at most kMostRandomBytes.
inline void fill_with_random(void* bytes, std::size_t size) {
  DDPRUN_ASSERT(size <= kMostRandomBytes);
  // A signal ends the wait for the first entropy after a boot, and nothing else fails.
  while (::getrandom(bytes, size, 0) != static_cast<ssize_t>(size)) DDPRUN_ASSERT(errno == EINTR);
}

inline std::uint64_t random_number() {
  std::uint64_t number = 0;
  fill_with_random(&number, sizeof(number));
  return number;
}

// Two lower-case hexadecimal digits for each of so many bytes.
inline std::string random_hex(std::size_t bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string random(bytes, '\0');
  fill_with_random(random.data(), random.size());
  std::string text;
  for (const char one : random) {
    const auto byte = static_cast<unsigned char>(one);
    text += {kDigits[byte / kDigits.size()], kDigits[byte % kDigits.size()]};
  }
  return text;
}

}  // namespace ddprun
