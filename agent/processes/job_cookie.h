// The job's name on this host. It is in every worker's environment (DDPRUN_JOB) and in the names of
// what the job makes, and it tells who started it, so that a later start can see that a launcher is
// gone and end what it left.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun::agent {

// The variable that carries it.
inline constexpr std::string_view kCookieVariable = "DDPRUN_JOB";

struct JobCookie {
  std::uint64_t pid_namespace = 0;  // inode of the launcher's; a pid means nothing in another one
  pid_t launcher = 0;
  std::uint64_t started = 0;  // clock ticks after boot: a pid is used again, this pair never
  std::string unique{};       // hex

  // `<namespace>-<pid>-<started>-<unique>`
  std::string text() const;
  bool operator==(const JobCookie&) const = default;
};

// Nothing where `text` is no cookie. What follows the cookie after another '-' is not read.
std::optional<JobCookie> parse_job_cookie(std::string_view text);

// A fresh one for a job whose launcher is this process.
JobCookie make_job_cookie();

// True only when it is sure that the launcher was one of this pid namespace and no longer runs.
// What cannot be read (a /proc mounted with hidepid, or of another namespace) proves nothing.
bool launcher_is_gone(const JobCookie& cookie);

// The cookie in the environment that process `pid` was started with; nothing where there is none,
// or it is not ours to read.
std::optional<JobCookie> cookie_of_process(pid_t pid);

}  // namespace ddprun::agent
