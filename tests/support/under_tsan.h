// How much data a test takes. ThreadSanitizer makes code ten times slower, and finds a race in
// little data as well as in much. The other builds take all of it.
#pragma once

namespace ddprun::support {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kUnderTsan = true;
#else
inline constexpr bool kUnderTsan = false;
#endif

// Gives `all`, and `few` under ThreadSanitizer.
template <typename Number>
constexpr Number less_under_tsan(Number all, Number few) {
  return kUnderTsan ? few : all;
}

}  // namespace ddprun::support
