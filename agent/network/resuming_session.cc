#include "agent/network/resuming_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "proto/log.h"

namespace ddprun::agent {

using rendezvous::Failure;
using rendezvous::HostMessage;
using rendezvous::NodeSpec;
using rendezvous::SessionLost;

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kRetryEvery{100};

}  // namespace

ResumingSession::ResumingSession(asio::io_context& loop, Open open, MessageHandler handler)
    : loop_(loop),
      open_(std::move(open)),
      handler_(std::move(handler)),
      alarm_(loop, [this] { look_again(); }) {
  this->open();
}

// ---- what the agent wants ----

void ResumingSession::join(const NodeSpec& node) {
  memory_.joined(node);
  if (!lost_) session_->join(node);
}

void ResumingSession::report_failure(std::int64_t round, const Failure& failure) {
  memory_.failed(round, failure);
  if (!lost_) session_->report_failure(round, failure);
}

void ResumingSession::report_success(std::int64_t round) {
  memory_.succeeded(round);
  if (!lost_) session_->report_success(round);
}

void ResumingSession::leave(const Failure& reason) {
  memory_.left(reason);
  if (!lost_) session_->leave(reason);
}

void ResumingSession::gone() {
  if (!lost_) session_->gone();
}

std::optional<rendezvous::Gathering> ResumingSession::gathering() const {
  return lost_ ? std::nullopt : session_->gathering();
}

// ---- the connection ----

void ResumingSession::open() {
  session_ = open_(
      lost_ ? std::optional(lost_->lease_ends) : std::nullopt,
      [this](const std::string& address, std::uint16_t port) { let_in(address, port); },
      [this](const HostMessage& message) { heard(message); });
}

// The first session has what it has to say in its queue.
void ResumingSession::let_in(const std::string& address, std::uint16_t port) {
  host_ = {{asio::ip::make_address(address), port}};
  let_in_at_ = Clock::now();
  if (!lost_) return;
  log::info("rendezvous: connected again; the workers were let be");
  lost_.reset();
  knocker_.reset();
  alarm_.set(Clock::time_point::max());
  memory_.say_to(*session_);
}

void ResumingSession::heard(const HostMessage& message) {
  if (!memory_.told(message)) return;
  if (const auto* lost = std::get_if<SessionLost>(&message)) {
    if (lost_ && !lost->was_reached) return look_again();  // a try that failed
    const bool is_broken = !lost->is_fenced && lost->error.code() == ErrorCode::kUnavailable;
    if (is_broken && lost->may_return && lost->lease_ends > Clock::now()) return reconnect(*lost);
  }
  handler_(message);
}

void ResumingSession::reconnect(const SessionLost& lost) {
  log::warning(lost.error.message() + "; connecting again, the workers go on");
  lost_ = lost;
  session_.reset();
  knocker_ = std::make_unique<rendezvous::Knocker>(loop_, host_, [this] { give_up(false); });
  // A host that is about to end lets nodes in and sends them away again.
  const Time not_before = let_in_at_ + kRetryEvery;
  const bool is_soon = Clock::now() < not_before;
  alarm_.set(is_soon ? std::min(not_before, lost_->lease_ends) : lost_->lease_ends);
  if (!is_soon) open();
}

// Called when a try has failed, and by the alarm.
void ResumingSession::look_again() {
  const auto now = Clock::now();
  if (now >= lost_->lease_ends) return give_up(true);
  const bool has_failed = session_ != nullptr;
  session_.reset();
  alarm_.set(has_failed ? std::min(now + kRetryEvery, lost_->lease_ends) : lost_->lease_ends);
  if (!has_failed) open();
}

void ResumingSession::give_up(bool is_fenced) {
  alarm_.set(Clock::time_point::max());
  session_.reset();
  SessionLost lost = *lost_;
  lost.is_fenced = is_fenced;
  handler_(lost);
}

}  // namespace ddprun::agent
