// The system calls of ours that Linux 4.18 lacks. Sandboxes and older container runtimes refuse
// them on newer kernels, too. The process asks once; each caller has another way without its call.
// Newer flags of memfd_create(2) and newer advice of madvise(2) have no row. A caller leaves an
// unknown flag out, and unknown advice changes nothing. Any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace ddprun {

enum class NewCall : std::uint8_t {
  kPidfdSendSignal,
  kPidfdOpen,
  kClone3,
  kCloseRange,
  kFutexWaitv,
};

struct NewCallRow {
  NewCall call{};
  std::string_view name;    // with the flag that we need
  std::string_view since;   // Linux
  int probe_errno = 0;      // of a trial that changes nothing, if the call is there; 0: it succeeds
  std::string_view effect;  // what a user sees without it
};

inline constexpr std::size_t kNewCallCount = 5;
// In the order of NewCall.
extern const std::array<NewCallRow, kNewCallCount> kNewCalls;

// Returns whether a trial that ended with `error` found the call. Pure. Filters answer ENOSYS or
// EPERM, and older kernels EINVAL or E2BIG to a new flag. All of these mean that it is not there.
bool is_there(NewCall call, int error);

// Makes the call so that nothing changes. Returns its errno; 0: it succeeded.
int try_call(NewCall call);

// Whether the call is there, as the first question of this process found it. After that it is
// async-signal-safe (signal-safety(7)).
bool has_call(NewCall call);

}  // namespace ddprun
