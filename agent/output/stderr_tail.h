// The end of a worker's stderr, kept in memory where no file has it, so that the failure report can
// quote it. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::agent {

// What the failure report quotes of one worker: a Python traceback fits, a screen still holds it.
inline constexpr std::size_t kTailLines = 20;
// Bound of a tail's bytes, for lines of any length.
inline constexpr std::size_t kTailBytes = std::size_t{16} << 10;

class StderrTail {
 public:
  void take(std::string_view bytes);
  // The last kTailLines lines within the last kTailBytes bytes, as last_lines() gives them.
  std::vector<std::string> lines() const;

 private:
  std::string kept_;  // below 2 * kTailBytes: it is cut only now and then
};

}  // namespace ddprun::agent
