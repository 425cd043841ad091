// The names of signals, as people write them.
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <string>

namespace ddprun {

// "SIGKILL" for 9; "signal 35" for one without a name.
inline std::string signal_name(int signo) {
  const char* name = ::sigabbrev_np(signo);
  return name == nullptr ? fmt::format("signal {}", signo) : fmt::format("SIG{}", name);
}

}  // namespace ddprun
