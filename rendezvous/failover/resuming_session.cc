#include "rendezvous/failover/resuming_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "base/log.h"

namespace ddprun::rendezvous {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kRetryEvery{100};

}  // namespace

ResumingSession::ResumingSession(asio::io_context& loop, Open open,
                                 std::chrono::milliseconds rejoin_limit, MessageHandler handler)
    : loop_(loop),
      open_(std::move(open)),
      rejoin_limit_(rejoin_limit),
      handler_(std::move(handler)),
      wait_(loop, [](const std::string& line) { log::warning(line); }),
      alarm_(loop, [this] { look_again(); }) {
  this->open();
}

// ---- what the agent wants ----

void ResumingSession::join(const NodeSpec& node) {
  fenced_.reset();
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
  fenced_.reset();
  if (!lost_) session_->gone();
}

std::optional<WaitStatus> ResumingSession::wait_status() const {
  return lost_ ? std::nullopt : session_->wait_status();
}

Unreached ResumingSession::unreached() const {
  if (!lost_) return session_->unreached();
  return {.why = last_try_.empty() ? lost_->error.message() : last_try_,
          .ends = is_fenced_ ? rejoin_until_ : lost_->lease_ends + rejoin_limit_};
}

// The agent tells of a node that joins.
std::string ResumingSession::still_lost(std::chrono::seconds waited) const {
  if (!memory_.is_in_round()) return {};
  const auto left = std::chrono::ceil<std::chrono::seconds>(limit() - Clock::now());
  return fmt::format("waiting for {} s for the host to let this node in again: {}; {} {} s",
                     waited.count(), unreached().why,
                     is_fenced_ ? "giving up in" : "the workers go on for",
                     std::max<std::int64_t>(left.count(), 0));
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
  log::info(is_fenced_ ? "rendezvous: connected again"
                       : "rendezvous: connected again; the workers were let be");
  is_fenced_ = false;
  lost_.reset();
  probe_.reset();
  wait_.end();
  alarm_.set(Clock::time_point::max());
  memory_.say_to(*session_);
}

void ResumingSession::heard(const HostMessage& message) {
  if (!memory_.told(message)) return;
  if (const auto* lost = std::get_if<SessionLost>(&message)) {
    if (lost_ && !lost->was_reached) {  // a try that failed
      last_try_ = lost->error.message();
      return look_again();
    }
    if (lost->error.code() == ErrorCode::kUnavailable && lost->may_return) return reconnect(*lost);
  }
  handler_(message);
}

void ResumingSession::reconnect(const SessionLost& lost) {
  lost_ = lost;
  last_try_.clear();
  wait_.begin([this](std::chrono::seconds waited) { return still_lost(waited); });
  if (lost.is_fenced) fenced_ = std::move(session_);
  session_.reset();
  if (!lost.host_returns)
    probe_ = std::make_unique<LivenessProbe>(loop_, host_, [this] { give_up(false); });
  if (Clock::now() >= lost.lease_ends) return fence();
  log::warning(lost.error.message() + "; connecting again, the workers go on");
  // A host that is about to end lets nodes in and sends them away again.
  const Time not_before = let_in_at_ + kRetryEvery;
  const bool is_soon = Clock::now() < not_before;
  alarm_.set(is_soon ? std::min(not_before, limit()) : limit());
  if (!is_soon) open();
}

// Called when a try has failed, and by the alarm.
void ResumingSession::look_again() {
  const auto now = Clock::now();
  if (now >= limit()) return is_fenced_ ? give_up(true) : fence();
  const bool has_failed = session_ != nullptr;
  session_.reset();
  alarm_.set(has_failed ? std::min(now + kRetryEvery, limit()) : limit());
  if (!has_failed) open();
}

// The lease is over, and the others may start a round soon. If all workers have succeeded, none
// is left that could run beside it.
void ResumingSession::fence() {
  is_fenced_ = true;
  rejoin_until_ = Clock::now() + rejoin_limit_;
  session_.reset();
  alarm_.set(Clock::now() + kRetryEvery);
  log::warning(lost_->error.message() + "; connecting again");
  const bool has_workers =
      memory_.is_in_round() && memory_.resumed().state != NodeState::kSucceeded;
  if (!has_workers) return;
  const RoundBroken broken{
      .round = memory_.round(), .cause = {.message = lost_->error.message()}, .is_fenced = true};
  // If it broke before, the agent is told again: workers that still end must not have their grace.
  if (memory_.is_round_whole()) memory_.told(broken);
  handler_(broken);
}

void ResumingSession::give_up(bool is_fenced) {
  alarm_.set(Clock::time_point::max());
  wait_.end();
  session_.reset();
  SessionLost lost = *lost_;
  lost.is_fenced = is_fenced;
  handler_(lost);
}

}  // namespace ddprun::rendezvous
