#include "proto/limit_hint.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>

namespace ddprun {
namespace {

// The hard limit: ddprun raises its own soft limit of open files.
std::string now_of(__rlimit_resource resource, rlim_t unit) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_max == RLIM_INFINITY) return "unlimited now";
  return fmt::format("{} now", limit.rlim_max / unit);
}

}  // namespace

std::string limit_hint(int error) {
  switch (error) {
    case EMFILE:
      return fmt::format("raise the limit of open files: `ulimit -n` ({})",
                         now_of(RLIMIT_NOFILE, 1));
    case ENFILE:
      return "raise the host's limit of open files: fs.file-max (sysctl)";
    case EAGAIN:
      return fmt::format(
          "raise the limit of processes: `ulimit -u` ({}), or pids.max of the cgroup",
          now_of(RLIMIT_NPROC, 1));
    case ENOMEM:
      return fmt::format("raise the limit of memory: `ulimit -v` ({}), or that of the cgroup",
                         now_of(RLIMIT_AS, 1024));
    default:
      return {};
  }
}

std::string describe_errno(int error) {
  const std::string hint = limit_hint(error);
  const char* text = ::strerrordesc_np(error);
  return fmt::format("{}{}{}", text == nullptr ? "unknown error" : text, hint.empty() ? "" : "; ",
                     hint);
}

}  // namespace ddprun
