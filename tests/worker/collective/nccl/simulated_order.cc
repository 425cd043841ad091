#include "tests/worker/collective/nccl/simulated_order.h"

#include <fmt/format.h>

#include <algorithm>

namespace ddprun::worker::sim {

void VectorClock::join(const VectorClock& other) {
  for (const auto& [stream, task] : other.tasks_) {
    std::uint64_t& mine = tasks_[stream];
    mine = std::max(mine, task);
  }
}

std::uint64_t VectorClock::advance(int stream) { return ++tasks_[stream]; }

bool VectorClock::has(int stream, std::uint64_t task) const {
  const auto found = tasks_.find(stream);
  return found != tasks_.end() && found->second >= task;
}

// Accesses that it covers, and that are over before it, go: who comes after this one comes after
// them, too. A stream is in order, and so is a task with itself.
std::optional<std::string> Accesses::add(const Touched& touched, int stream, std::uint64_t task,
                                         const VectorClock& before) {
  const auto comes_after = [&](const Access& other) {
    return other.stream == stream || before.has(other.stream, other.task);
  };
  std::optional<std::string> trouble;
  for (const Access& other : all_) {
    if (!other.touched.meets(touched) || comes_after(other)) continue;
    trouble = fmt::format("task {} of stream {} {} {} bytes that task {} of stream {} {}", task,
                          stream, touched.writes ? "writes" : "reads", touched.end - touched.begin,
                          other.task, other.stream, other.touched.writes ? "writes" : "reads");
  }
  std::erase_if(all_, [&](const Access& other) {
    const bool covered = touched.begin <= other.touched.begin && other.touched.end <= touched.end;
    return covered && (touched.writes || !other.touched.writes) && comes_after(other);
  });
  all_.push_back({touched, stream, task});
  return trouble;
}

bool Accesses::over(const VectorClock& known) const {
  return std::ranges::all_of(
      all_, [&](const Access& access) { return known.has(access.stream, access.task); });
}

}  // namespace ddprun::worker::sim
