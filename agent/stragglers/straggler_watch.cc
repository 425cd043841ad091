#include "agent/stragglers/straggler_watch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "agent/stragglers/step_file.h"
#include "base/numbers.h"
#include "base/regular_file.h"

namespace ddprun::agent {

Result<std::chrono::seconds> parse_straggler_window(const std::string& text) {
  if (text.empty()) return kStragglerWindow;
  const auto seconds = parse_whole<int>(text);
  if (seconds && *seconds >= 0 && *seconds <= kLongestStragglerWindow.count())
    return std::chrono::seconds(*seconds);
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("{}={}: expected whole seconds from 1 to {}, or 0 for none",
                           kStragglerWindowVariable, text, kLongestStragglerWindow.count()));
}

StragglerWatch::StragglerWatch(asio::io_context& loop, Handlers handlers)
    : handlers_(std::move(handlers)), alarm_(loop, [this] { look(); }) {}

std::string StragglerWatch::path_of(int local_rank) const {
  return fmt::format("{}/steps_{}", handlers_.folder(), local_rank);
}

void StragglerWatch::attempt_begins(const Attempt& attempt, std::chrono::seconds window) {
  if (handlers_.folder().empty() || window.count() == 0) return;
  attempt_ = attempt;
  window_ = window;
  told_.assign(static_cast<std::size_t>(attempt.workers), 0);
  spreads_.assign(told_.size(), {});
  host_ = look_at_host(handlers_.workers_cpu(), now());
  plan();
}

void StragglerWatch::attempt_ends() {
  if (!attempt_) return;
  for (int rank = 0; rank < attempt_->workers; ++rank) ::unlink(path_of(rank).c_str());
  attempt_.reset();
  spreads_.clear();
  alarm_.set(Time::max());
}

// Workers leave samples at whole multiples of the window, by the time of day. In the middle between
// two of them all are there, on all nodes.
void StragglerWatch::plan() {
  const auto today = std::chrono::system_clock::now().time_since_epoch();
  const auto since_last = today % window_;
  auto wait = window_ / 2 - since_last;
  if (wait <= std::chrono::seconds(0)) wait += window_;
  alarm_.set(now() + wait);
}

void StragglerWatch::look() {
  plan();
  const HostLook before = std::exchange(host_, look_at_host(handlers_.workers_cpu(), now()));
  rendezvous::StepReport report{.round = attempt_->round, .host = host_between(before, host_)};
  for (int rank = 0; rank < attempt_->workers; ++rank) {
    auto read = parse_step_file(read_file_start(path_of(rank), kMostStepFileBytes));
    std::int64_t& told = told_[static_cast<std::size_t>(rank)];
    // A worker that has done few steps since, or is no Python program, leaves none.
    if (!read || read->number == told) continue;
    told = read->number;
    read->sample.rank = attempt_->first_rank + rank;
    spreads_[static_cast<std::size_t>(rank)] = read->sample.spread;
    report.samples.push_back(std::move(read->sample));
    if (report.samples.size() < rendezvous::kMostSampledRanks) continue;
    handlers_.session()->report_steps(report);
    report.samples.clear();
  }
  if (!report.samples.empty()) handlers_.session()->report_steps(report);
}

rendezvous::StepSpread StragglerWatch::spread_of(int local_rank) const {
  const auto place = static_cast<std::size_t>(local_rank);
  return place < spreads_.size() ? spreads_[place] : rendezvous::StepSpread{};
}

void StragglerWatch::hear(const rendezvous::HostMessage& message) {
  const auto* verdict = std::get_if<rendezvous::StragglerVerdict>(&message);
  if (attempt_ && verdict != nullptr && verdict->round == attempt_->round)
    handlers_.are_slow(*verdict);
}

}  // namespace ddprun::agent
