#include "base/net/descriptors.h"

#include <algorithm>
#include <limits>

namespace ddprun {
namespace {

// A descriptor is an int. RLIM_INFINITY is far above that.
constexpr rlim_t kMostDescriptors = std::numeric_limits<int>::max();

// getrlimit(2) fails only for a bad address or a bad name, so its result is not looked at.
rlimit descriptor_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return limit;
}

}  // namespace

rlimit raise_descriptor_limit() {
  const rlimit before = descriptor_limit();
  const rlimit raised{.rlim_cur = before.rlim_max, .rlim_max = before.rlim_max};
  // Every process may raise its soft limit to the hard one (setrlimit(2)). Should it fail, the old
  // limit stands.
  ::setrlimit(RLIMIT_NOFILE, &raised);
  return before;
}

int first_reserved_descriptor(rlim_t soft) {
  const rlim_t limit = std::min(soft, kMostDescriptors);
  // A quarter, so that a small limit still leaves most of its descriptors to connections.
  return static_cast<int>(limit - std::min(kReservedDescriptors, limit / 4));
}

int first_reserved_descriptor() { return first_reserved_descriptor(descriptor_limit().rlim_cur); }

}  // namespace ddprun
