#include "agent/monitors/attempt_progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/log.h"

namespace ddprun::agent {
namespace {

// A number, and some spaces around it.
constexpr std::size_t kMostBytes = 64;
// The loop stands still so long at most. A look at a file that answers takes less than 1 ms.
constexpr std::chrono::milliseconds kMostWait{200};

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
    : path_(std::move(path)), from_the_first_(from_the_first), file_(path_, kMostBytes) {
  if (!path_.empty()) file_.begin();
}

// A file that nobody has written since the job began tells of an earlier job.
std::optional<std::int64_t> AttemptProgress::step_in_file() {
  if (path_.empty()) return std::nullopt;
  const Time end = now() + kMostWait;
  const auto earlier = file_.until(end);
  if (!before_) before_ = earlier;
  file_.begin();
  if (const auto found = file_.until(end))
    return found == before_ ? std::nullopt : step_in(found->start);
  if (!std::exchange(has_warned_, true))
    log::warning(
        fmt::format("--progress={}: the file does not answer: nobody knows its step", path_));
  return std::nullopt;
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
