#include "agent/report/notices.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/number_ranges.h"
#include "base/shown_text.h"

namespace ddprun::agent {
namespace {

template <typename Count>
const char* plural(Count count) {
  return count == 1 ? "" : "s";
}

// "last call ends in 12 s"
std::string until(const rendezvous::WaitStatus& it) {
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(it.ends_in).count();
  switch (it.awaits) {
    case rendezvous::Await::kNodes:
      return fmt::format("giving up in {} s", seconds);
    case rendezvous::Await::kLastCall:
      return fmt::format("last call ends in {} s", seconds);
    case rendezvous::Await::kOldWorkers:
      return "workers of the last round still end";
    case rendezvous::Await::kRestartPause:
      return fmt::format("restart in {} s", seconds);
    case rendezvous::Await::kSeat:
      return "all seats are taken, this node is a spare";
    case rendezvous::Await::kResize:
      return fmt::format("the job takes newcomers in {} s", seconds);
  }
  return {};
}

// "have 3 of 2:4 nodes, last call ends in 12 s"
std::string what_is_awaited(const rendezvous::WaitStatus& it) {
  const std::string range = it.min_nodes == it.max_nodes
                                ? fmt::format("{}", it.min_nodes)
                                : fmt::format("{}:{}", it.min_nodes, it.max_nodes);
  return fmt::format("have {} of {} nodes, {}{}", it.have, range, until(it),
                     it.missing.empty() ? "" : fmt::format(", missing node rank {}", it.missing));
}

// "no word from the host yet (Connection refused)": short, since a line that wraps cannot be
// written over.
std::string no_word(const NoHost& it) {
  constexpr std::size_t kMost = 40;
  const std::size_t colon = it.why.rfind(": ");
  const std::string last = colon == std::string::npos ? it.why : it.why.substr(colon + 2);
  return "no word from the host yet" +
         (last.empty() ? std::string() : " (" + shown_text(last, kMost) + ")");
}

// "no host has answered yet, giving up in 55 s: 10.0.0.1:29400: Connection refused"
std::string no_answer(const NoHost& it) {
  if (!it.gives_up_in) return "no word from the host yet";
  return fmt::format("no host has answered yet, giving up in {} s{}",
                     std::max<std::chrono::seconds::rep>(it.gives_up_in->count(), 0),
                     it.why.empty() ? "" : ": " + it.why);
}

}  // namespace

// One line of ours, or nothing when there were enough.
std::string Notices::line(const std::string& text) {
  if (quiet_ || lines_ >= kOwnLines) return {};
  ++lines_;
  return called_ + ": " + shown_text(text) + "\n";
}

std::string Notices::incident(const std::string& text) {
  std::string told = line(text);
  shown_incident_ = !told.empty();
  return told;
}

std::string Notices::cost(const std::string& stages) const {
  return shown_incident_ ? called_ + ": " + stages + "\n" : "";
}

std::string Notices::started(const rendezvous::Round& round, const std::string& log_folder) {
  if (!terminal_ || shown_start_) return {};
  shown_start_ = true;
  std::string text = line(fmt::format(
      "{} worker{} on {} node{}, master {}:{}", round.world_size, plural(round.world_size),
      round.node_count, plural(round.node_count), round.master_addr, round.master_port));
  if (!log_folder.empty()) text += line("logs in " + log_folder);
  return text;
}

std::string Notices::restarting(const rendezvous::Failure& cause, int restarts,
                                const RestartPlan& plan) {
  // With a window the budget comes back, so the restarts of a job have no upper limit to name.
  const std::string of = plan.window.count() > 0 ? "" : fmt::format(" of {}", plan.max_restarts);
  return incident(fmt::format(
      "{}; restart {}{}", cause.message.empty() ? "a worker failed" : cause.message, restarts, of));
}

std::string Notices::resizing(const rendezvous::Failure& cause) {
  return incident(cause.message + "; the workers start again, no restart is spent");
}

std::string Notices::waiting(const std::string& where, std::chrono::seconds waited,
                             const std::optional<rendezvous::WaitStatus>& wait_status,
                             const NoHost& no_host) {
  if (!shows_waiting()) return {};
  waiting_ = true;  // the cursor now stands behind a text without a newline
  // Erases what a longer line before it left (ECMA-48, EL).
  return fmt::format("\r{}: waiting at {} for {} s: {}\033[K", called_, where, waited.count(),
                     wait_status ? shown_text(what_is_awaited(*wait_status)) : no_word(no_host));
}

std::string Notices::still_waiting(const std::string& where, std::chrono::seconds waited,
                                   const std::optional<rendezvous::WaitStatus>& wait_status,
                                   const NoHost& no_host) const {
  if (quiet_) return {};
  return fmt::format("{}: waiting for nodes at {} for {} s: {}\n", called_, where, waited.count(),
                     shown_text(wait_status ? what_is_awaited(*wait_status) : no_answer(no_host)));
}

std::string Notices::still_waiting(const std::string& what, std::chrono::seconds waited) const {
  if (quiet_) return {};
  return fmt::format("{}: waiting for {} s: {}\n", called_, waited.count(), shown_text(what));
}

std::string Notices::left_alone(const std::vector<int>& ended, const std::vector<int>& still,
                                std::chrono::seconds ago) const {
  if (quiet_) return {};
  const bool is_one = ended.size() == 1;
  return fmt::format("{}: rank{} {} ended with 0{} {} s ago; rank{} {} still run{}\n", called_,
                     plural(ended.size()), number_ranges(ended), is_one ? "" : ", the last",
                     ago.count(), plural(still.size()), number_ranges(still),
                     still.size() == 1 ? "s" : "");
}

std::string Notices::waited() {
  if (!waiting_) return {};
  waiting_ = false;
  return "\n";
}

}  // namespace ddprun::agent
