// DDPRUN_ASSERT: checks a condition that only a bug of ours can break. The check stays on in
// release builds. A launcher that goes on with a broken state can kill the wrong process. It is not
// for bad input or failed system calls; those are Errors (base/result.h). Any thread.
// DDPRUN_UNREACHABLE: the same, at a place that only a bug of ours can reach.
#pragma once

namespace ddprun {

// Prints the condition, the file and the line to stderr, then aborts. Never returns.
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);
// The same for a place that was reached; `what` says what only a bug can bring there.
[[noreturn]] void unreachable_reached(const char* what, const char* file, int line);

}  // namespace ddprun

// Evaluates `condition` exactly once, in every build.
#define DDPRUN_ASSERT(condition) \
  ((condition) ? static_cast<void>(0) : ::ddprun::assertion_failed(#condition, __FILE__, __LINE__))
// Ends the program; `what` is a text.
#define DDPRUN_UNREACHABLE(what) ::ddprun::unreachable_reached(what, __FILE__, __LINE__)
