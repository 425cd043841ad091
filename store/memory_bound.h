// Bounds what the store holds while memory is short, on this host or in the cgroup of its process.
// The kernel ends a process that passes the cgroup's limit, and the launcher is that process. So a
// value is refused before. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "store/limits.h"

namespace ddprun::store {

class MemoryBound {
 public:
  // So much does not count: no job is refused so little, however full its host is.
  static constexpr std::size_t kFreeBytes = 16 * kMiB;
  // So much is left to the launcher itself, and to those who ask for memory at the same moment.
  static constexpr std::size_t kKeptBytes = 32 * kMiB;

  struct MemoryUse {
    std::size_t stored = 0;
    std::size_t buffered = 0;  // for connections
    std::size_t sum() const { return stored + buffered; }
  };

  explicit MemoryBound(const StoreLimits& given) : given_(given) {}

  // Returns whether to ask how much memory is left: it takes some 100 us. Seldom where there is
  // much.
  bool is_due(const MemoryUse& held) const { return held.sum() >= look_at_; }

  // Lowers `limits` to what `left` allows, or raises them again. `left` may be empty:
  // without it the given limits hold.
  void looked(StoreLimits& limits, const MemoryUse& held, std::optional<std::uint64_t> left);

  // A request was refused for `error`. One line for the user, once; else nothing.
  std::optional<std::string> refused(const Error& error, std::size_t stored);

 private:
  const StoreLimits given_;
  std::size_t look_at_ = kFreeBytes;
  std::optional<std::uint64_t> left_;  // where it lowered the limits
  bool logged_ = false;
};

}  // namespace ddprun::store
