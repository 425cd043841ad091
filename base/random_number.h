// A number that nobody can guess, for names and seeds. Not std::random_device: its constructor asks
// the CPU what it can do, and that traps in a virtual machine. Any thread.
#pragma once

#include <sys/random.h>

#include <cstdint>

namespace ddprun {

inline std::uint64_t random_number() {
  std::uint64_t number = 0;
  // So few bytes come whole and without an error (getrandom(2)).
  [[maybe_unused]] const auto got = ::getrandom(&number, sizeof(number), 0);
  return number;
}

}  // namespace ddprun
