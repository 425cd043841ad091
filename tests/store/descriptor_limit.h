// The descriptors of the test's own process: how many it may open, and which are free.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <vector>

namespace ddprun {

// Sets the soft limit while it lives.
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

// What the next open() would return; -1: none is left.
inline int lowest_free_descriptor() {
  const int lowest = ::dup(STDERR_FILENO);
  if (lowest >= 0) ::close(lowest);
  return lowest;
}

// How many more may be opened now.
inline int free_descriptors() {
  std::vector<int> taken;
  for (int one = ::dup(STDERR_FILENO); one >= 0; one = ::dup(STDERR_FILENO)) taken.push_back(one);
  for (const int one : taken) ::close(one);
  return static_cast<int>(taken.size());
}

}  // namespace ddprun
