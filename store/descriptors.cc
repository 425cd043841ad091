#include "store/descriptors.h"

#include <algorithm>
#include <limits>

namespace ddprun::store {
namespace {

constexpr rlim_t kMostDescriptors = std::numeric_limits<int>::max();

// Fails for a bad address only (getrlimit(2)).
rlimit descriptor_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return limit;
}

}  // namespace

rlimit raise_descriptor_limit() {
  const rlimit before = descriptor_limit();
  const rlimit raised{.rlim_cur = before.rlim_max, .rlim_max = before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &raised);
  return before;
}

int first_reserved_descriptor(rlim_t soft) {
  const rlim_t limit = std::min(soft, kMostDescriptors);
  return static_cast<int>(limit - std::min(kReservedDescriptors, limit / 4));
}

int first_reserved_descriptor() { return first_reserved_descriptor(descriptor_limit().rlim_cur); }

}  // namespace ddprun::store
