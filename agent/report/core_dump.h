// Tells where the kernel left the core dump of a worker (core(5)). The parsing is pure; find_core()
// reads /proc and looks for the file. Any thread.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace ddprun::agent {

// The place of a core dump: a pattern of /proc/sys/kernel/core_pattern, filled in for one process.
struct CorePlace {
  std::string
      program{};        // not empty: the dump is handed to it, and there is no file of ours to name
  std::string shown{};  // the file for people; what is not known is left as in the pattern
  std::string glob{};   // the file for glob(3), with * for what is not known
  bool operator==(const CorePlace&) const = default;
};

// `uses_pid`: /proc/sys/kernel/core_uses_pid. A relative path is in `folder`, which may be empty.
CorePlace core_place(std::string_view pattern, bool uses_pid, int pid, int signo,
                     const std::string& folder);

// Names the file for people, with its size if it is found, else with the place where it must be.
// `since`: an older file of that name is another process's.
std::string find_core(int pid, int signo, std::chrono::system_clock::time_point since);

}  // namespace ddprun::agent
