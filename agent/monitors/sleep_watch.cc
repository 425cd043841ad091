#include "agent/monitors/sleep_watch.h"

#include <algorithm>
#include <utility>

#include "agent/processes/process.h"

namespace ddprun::agent {
namespace {

// A worker sleeps uninterruptibly for a moment at every disk access. So it must be seen in state D
// several times in a row before it counts as stuck.
constexpr int kLooksPerLimit = 4;
constexpr std::chrono::nanoseconds kMostBetweenLooks = std::chrono::seconds(1);
constexpr std::chrono::nanoseconds kLeastBetweenLooks = std::chrono::milliseconds(10);

bool sleeps_uninterruptibly(pid_t pid) {
  const auto stat = read_process_stat(pid);
  return stat && stat->state == 'D';
}

}  // namespace

std::optional<pid_t> SleepTable::look(const std::map<pid_t, bool>& workers, Time now) {
  // Forget those that are awake or gone: a later sleep is a new one, and the pid may be reused.
  std::erase_if(asleep_since_, [&workers](const auto& entry) {
    const auto worker = workers.find(entry.first);
    return worker == workers.end() || !worker->second;
  });
  for (const auto& [pid, asleep] : workers) {
    if (asleep && now - asleep_since_.try_emplace(pid, now).first->second >= limit_) return pid;
  }
  return std::nullopt;
}

SleepWatch::SleepWatch(asio::io_context& loop, std::chrono::nanoseconds limit,
                       std::function<std::vector<pid_t>()> pids,
                       std::function<void(pid_t)> on_stuck)
    : timer_(loop),
      interval_(std::clamp(limit / kLooksPerLimit, kLeastBetweenLooks, kMostBetweenLooks)),
      table_(limit),
      pids_(std::move(pids)),
      on_stuck_(std::move(on_stuck)) {
  wait();
}

void SleepWatch::wait() {
  timer_.expires_after(interval_);
  timer_.async_wait([this](boost::system::error_code cancelled) {
    if (!cancelled) look();
  });
}

void SleepWatch::look() {
  std::map<pid_t, bool> workers;
  for (const pid_t pid : pids_()) workers[pid] = sleeps_uninterruptibly(pid);
  if (const auto stuck = table_.look(workers, std::chrono::steady_clock::now())) {
    on_stuck_(*stuck);
  } else {
    wait();
  }
}

}  // namespace ddprun::agent
