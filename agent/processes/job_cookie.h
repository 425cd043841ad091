// The job's name on this host. It is in the environment of every worker (DDPRUN_JOB) and in the
// names of the job's cgroup and shared memory. It also says which launcher made it. So a later
// start of ddprun can see that this launcher is gone, and end what it left. Any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun::agent {

// The environment variable that carries the cookie.
inline constexpr std::string_view kCookieVariable = "DDPRUN_JOB";

struct JobCookie {
  // Inode of the launcher's pid namespace: in another one its pid means nothing. 0: unknown.
  std::uint64_t pid_namespace = 0;
  pid_t launcher = 0;
  // When the launcher started, in clock ticks after boot. The kernel gives a pid out again; pid and
  // start time together belong to one process only. 0: unknown.
  std::uint64_t started = 0;
  std::string unique{};  // random, in hex

  // `<namespace>-<pid>-<started>-<unique>`
  std::string text() const;
  bool operator==(const JobCookie&) const = default;
};

// Reads a cookie from the beginning of `text`. A further '-' ends it and the rest is not read, so a
// name that begins with a cookie is a good `text`. Nothing: there is no cookie.
std::optional<JobCookie> parse_job_cookie(std::string_view text);

// A new cookie, with this process as the launcher.
JobCookie make_job_cookie();

// True only if it is certain that the launcher ran in this pid namespace and has ended. In doubt it
// is false: the caller kills what a launcher that is gone left. A /proc that hides processes
// (hidepid) or belongs to another namespace proves nothing.
bool launcher_is_gone(const JobCookie& cookie);

// The cookie in the environment that process `pid` was started with. Nothing: there is none, or we
// may not read that environment.
std::optional<JobCookie> cookie_of_process(pid_t pid);

}  // namespace ddprun::agent
