// DDPRUN_ASSERT: an invariant whose breach is our bug. Stays on in release builds: a launcher that
// goes on with a broken state can kill the wrong process.
#pragma once

namespace ddprun {

// Prints the broken condition and its place to stderr and aborts. Never returns.
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);

}  // namespace ddprun

#define DDPRUN_ASSERT(condition) \
  ((condition) ? static_cast<void>(0) : ::ddprun::assertion_failed(#condition, __FILE__, __LINE__))
