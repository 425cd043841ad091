// The descriptors of the test's own process: how many it may open, and which are free. All of it is
// for the whole process: a server on another thread of the test is limited too.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <vector>

namespace ddprun {

// Sets the soft limit while it lives. Descriptors above it that are open already stay open
// (getrlimit(2), RLIMIT_NOFILE).
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t soft) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit lowered{.rlim_cur = soft, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &lowered);
  }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;
  ~DescriptorLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

// The number that the next open() would return; -1 if none is left.
inline int lowest_free_descriptor() {
  const int lowest = ::dup(STDERR_FILENO);
  if (lowest >= 0) ::close(lowest);
  return lowest;
}

// Returns how many more descriptors may be opened now. It opens them all for a moment.
inline int free_descriptors() {
  std::vector<int> taken;
  for (int one = ::dup(STDERR_FILENO); one >= 0; one = ::dup(STDERR_FILENO)) taken.push_back(one);
  for (const int one : taken) ::close(one);
  return static_cast<int>(taken.size());
}

}  // namespace ddprun
