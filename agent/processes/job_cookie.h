// The job's name on this host. It is in the environment of every worker (DDPRUN_JOB). It is in the
// names of the job's lock, cgroup and shared memory, too. A later start of ddprun sees by the lock
// that the launcher is gone (owner_lock.h), and ends what it left. Any thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun::agent {

// The environment variable that carries the cookie.
inline constexpr std::string_view kCookieVariable = "DDPRUN_JOB";

// The length of JobCookie::unique as make_job_cookie() fills it.
inline constexpr std::size_t kUniqueLength = 16;

// Namespace, pid and start time prove nothing about the launcher's life: another time namespace
// shows another start time. The namespace tells in which /proc the job's processes are.
struct JobCookie {
  std::uint64_t pid_namespace = 0;  // of the launcher, as pid_namespace_of() says
  pid_t launcher = 0;
  std::uint64_t started = 0;  // clock ticks after boot; 0: unknown
  std::string unique{};       // random, in hex

  // `<namespace>-<pid>-<started>-<unique>`
  std::string text() const;
  bool operator==(const JobCookie&) const = default;
};

// Reads a cookie from the beginning of `text`. A further '-' ends it and the rest is not read. So a
// name that begins with a cookie is a good `text`. Nothing if there is no cookie.
std::optional<JobCookie> parse_job_cookie(std::string_view text);

// The pid namespace of a process of /proc ("self", or a number), by the inode that names it
// (namespaces(7)). 0: unknown, for example without /proc.
std::uint64_t pid_namespace_of(std::string_view process);

// A new cookie, with this process as the launcher.
JobCookie make_job_cookie();

// The cookie in the environment that process `pid` was started with. Nothing if there is none, or
// we may not read that environment.
std::optional<JobCookie> cookie_of_process(pid_t pid);

}  // namespace ddprun::agent
