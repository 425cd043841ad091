#include "agent/processes/job_cookie.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "agent/processes/process.h"
#include "base/random_number.h"

namespace ddprun::agent {
namespace {

// Takes a number and the '-' behind it off the front of `text`. False if `text` begins otherwise.
template <typename Number>
bool take_number(std::string_view& text, Number& value) {
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc() || end == text.data()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (!text.starts_with('-')) return false;
  text.remove_prefix(1);
  return true;
}

}  // namespace

std::uint64_t pid_namespace_of(std::string_view process) {
  struct stat facts {};
  return ::stat(fmt::format("/proc/{}/ns/pid", process).c_str(), &facts) == 0 ? facts.st_ino : 0;
}

std::string JobCookie::text() const {
  return fmt::format("{}-{}-{}-{}", pid_namespace, launcher, started, unique);
}

std::optional<JobCookie> parse_job_cookie(std::string_view text) {
  JobCookie cookie;
  if (!take_number(text, cookie.pid_namespace) || !take_number(text, cookie.launcher) ||
      !take_number(text, cookie.started))
    return std::nullopt;
  cookie.unique = std::string(text.substr(0, text.find('-')));
  if (cookie.unique.empty() || cookie.launcher <= 0) return std::nullopt;
  return cookie;
}

JobCookie make_job_cookie() {
  return {.pid_namespace = pid_namespace_of("self"),
          .launcher = ::getpid(),
          .started = read_process_stat(::getpid()).value_or(ProcessStat{}).started,
          .unique = fmt::format("{:0{}x}", random_number(), kUniqueLength)};
}

std::optional<JobCookie> cookie_of_process(pid_t pid) {
  const std::string variables = read_proc_file(pid, "environ");
  const std::string prefix = std::string(kCookieVariable) + "=";
  std::string_view rest = variables;
  while (!rest.empty()) {
    const std::string_view entry = rest.substr(0, rest.find('\0'));
    if (entry.starts_with(prefix)) return parse_job_cookie(entry.substr(prefix.size()));
    rest.remove_prefix(std::min(entry.size() + 1, rest.size()));
  }
  return std::nullopt;
}

}  // namespace ddprun::agent
