#include "agent/monitors/attempt_progress.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/regular_file.h"

namespace ddprun::agent {
namespace {

// A number, and some spaces around it.
constexpr std::size_t kMostBytes = 64;

}  // namespace

std::optional<std::int64_t> step_in(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos) return std::nullopt;
  std::int64_t step = 0;
  const auto read = std::from_chars(text.data() + begin, text.data() + text.size(), step);
  if (read.ec != std::errc() || step < 0) return std::nullopt;
  return step;
}

AttemptProgress::AttemptProgress(std::string path, bool from_the_first)
    : path_(std::move(path)), from_the_first_(from_the_first), before_(read()) {}

AttemptProgress::Content AttemptProgress::read() const {
  struct stat facts {};
  if (path_.empty() || ::stat(path_.c_str(), &facts) != 0) return {};
  return {.text = read_file_start(path_, kMostBytes), .written = facts.st_mtim};
}

// A file that nobody has written since the job began tells of an earlier job.
std::optional<std::int64_t> AttemptProgress::step_in_file() const {
  const Content now = read();
  const bool is_old = now.text == before_.text && now.written.tv_sec == before_.written.tv_sec &&
                      now.written.tv_nsec == before_.written.tv_nsec;
  return is_old ? std::nullopt : step_in(now.text);
}

void AttemptProgress::tell(rendezvous::Failure& failure,
                           const std::vector<WorkerProgress>& workers) {
  if (const auto step = step_in_file()) {
    failure.step = step;
    failure.is_step_of_run = true;
    return;
  }
  std::uint64_t steps = 0;
  bool has_page = false;
  for (const WorkerProgress& worker : workers) {
    steps = std::max(steps, worker.steps);
    has_page = has_page || worker.first_line != Time{};
  }
  has_counted_ = has_counted_ || steps > 0;
  if (has_counted_ || (from_the_first_ && has_page))
    failure.step = static_cast<std::int64_t>(steps);
}

}  // namespace ddprun::agent
