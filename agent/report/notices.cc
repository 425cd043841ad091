#include "agent/report/notices.h"

#include <fmt/format.h>

namespace ddprun::agent {
namespace {

template <typename Count>
const char* plural(Count count) {
  return count == 1 ? "" : "s";
}

}  // namespace

// One line of ours, or nothing when there were enough.
std::string Notices::line(const std::string& text) {
  if (quiet_ || lines_ >= kOwnLines) return {};
  ++lines_;
  return called_ + ": " + text + "\n";
}

std::string Notices::started(const rendezvous::Round& round, const std::string& log_folder) {
  if (!terminal_ || told_start_) return {};
  told_start_ = true;
  std::string text = line(fmt::format(
      "{} worker{} on {} node{}, master {}:{}", round.world_size, plural(round.world_size),
      round.seats.size(), plural(round.seats.size()), round.master_addr, round.master_port));
  if (!log_folder.empty()) text += line("logs in " + log_folder);
  return text;
}

std::string Notices::restarting(const rendezvous::Failure& cause, int restarts,
                                const RestartPlan& plan) {
  // With a window the budget comes back, so the restarts of a job have no upper limit to name.
  const std::string of = plan.window.count() > 0 ? "" : fmt::format(" of {}", plan.max_restarts);
  return line(fmt::format("{}; restart {}{}",
                          cause.message.empty() ? "a worker failed" : cause.message, restarts, of));
}

std::string Notices::resizing(const rendezvous::Failure& cause) {
  return line(cause.message + "; the workers start again, no restart is spent");
}

std::string Notices::waiting(const std::string& where, std::chrono::seconds waited,
                             std::chrono::seconds limit) {
  if (!shows_waiting()) return {};
  waiting_ = true;  // the cursor now stands behind a text without a newline
  return fmt::format("\r{}: waiting for the other nodes at {} ({} s of {} s)", called_, where,
                     waited.count(), limit.count());
}

std::string Notices::waited() {
  if (!waiting_) return {};
  waiting_ = false;
  return "\n";
}

}  // namespace ddprun::agent
