#include "agent/network/elected_session.h"

#include <fmt/format.h>

#include <utility>
#include <variant>

#include "proto/log.h"

namespace ddprun::agent {

using rendezvous::Failure;
using rendezvous::HostMessage;
using rendezvous::JobEnded;
using rendezvous::NodeSpec;
using rendezvous::RoundBroken;
using rendezvous::RoundPublished;
using rendezvous::SessionLost;

namespace {

// Whether the next leader may take us. Everything else was said by a leader that lives.
bool is_leader_lost(const SessionLost& lost) {
  const ErrorCode code = lost.error.code();
  return code == ErrorCode::kUnavailable || code == ErrorCode::kDeposed ||
         (code == ErrorCode::kTimedOut && !lost.was_reached);
}

}  // namespace

ElectedSession::ElectedSession(asio::io_context& loop, rendezvous::ElectionOptions options,
                               Ways ways, MessageHandler handler)
    : ways_(std::move(ways)),
      handler_(std::move(handler)),
      election_(loop, std::move(options),
                {.own_address = ways_.own_address,
                 .lead = [this](rendezvous::JobRecord record) { lead(std::move(record)); },
                 .follow = [this](const rendezvous::Leader& leader) { follow(leader); },
                 .deposed = [this](const std::string& why) { deposed(why); },
                 .job_over = [this](bool succeeded) { job_over(succeeded); },
                 .failed = [this](const Error& error) { end(false, SessionLost{error}); }}) {
  election_.start();
}

// ---- what the agent wants ----

void ElectedSession::join(const NodeSpec& node) {
  fenced_.reset();
  joining_ = node;
  if (session_) ask();
}

// A new leader knows no seats: who stays wishes for its own.
void ElectedSession::ask() {
  NodeSpec node = *joining_;
  if (!is_seated_ && node.rank_is_wish && node.node_rank < 0) node.node_rank = seat_;
  session_->join(node);
}

// Without a leader the round is broken already.
void ElectedSession::report_failure(std::int64_t round, const Failure& failure) {
  if (session_) session_->report_failure(round, failure);
}

void ElectedSession::report_success(std::int64_t round) {
  if (session_) session_->report_success(round);
}

void ElectedSession::leave(const Failure& reason) {
  is_over_ = true;
  if (session_) session_->leave(reason);
  election_.job_ended(false);
}

void ElectedSession::gone() {
  fenced_.reset();
  if (session_) session_->gone();
}

std::optional<rendezvous::Gathering> ElectedSession::gathering() const {
  return session_ ? session_->gathering() : std::nullopt;
}

// ---- what the election brings ----

void ElectedSession::lead(rendezvous::JobRecord record) {
  if (is_over_) return;
  session_.reset();
  log::info(
      fmt::format("this node leads the rendezvous from now on; rounds so far: {}, restarts: {}",
                  record.round, record.restarts));
  leads_ = true;
  leader_ = "this node";
  take(ways_.lead(
      std::move(record),
      [this](rendezvous::JobRecord next, std::function<void()> recorded) {
        election_.publish(std::move(next), std::move(recorded));
      },
      [this](const HostMessage& message) { heard(message); }));
}

void ElectedSession::follow(const rendezvous::Leader& leader) {
  if (is_over_) return;
  session_.reset();
  leader_ = leader.hostname;
  take(ways_.follow(
      leader, [this] { election_.followed(); },
      [this](const HostMessage& message) { heard(message); }));
}

void ElectedSession::take(std::unique_ptr<Session> session) {
  session_ = std::move(session);
  if (joining_) ask();
}

void ElectedSession::deposed(const std::string& why) {
  const Error error(ErrorCode::kDeposed,
                    fmt::format("this node leads the rendezvous no more: {}", why));
  if (leads_) ways_.tell_end(error);
  lose({.error = error, .is_fenced = true});
}

void ElectedSession::job_over(bool succeeded) {
  end(succeeded, JobEnded{.succeeded = succeeded,
                          .cause = {.hostname = leader_,
                                    .message = "the job failed while this node had no leader"}});
}

// ---- what the leader says ----

void ElectedSession::heard(const HostMessage& message) {
  if (const auto* published = std::get_if<RoundPublished>(&message)) {
    joining_.reset();
    round_ = published->round.number;
    seat_ = published->seat.node_rank;
    is_seated_ = true;
    election_.round_begins();
  }
  if (const auto* ended = std::get_if<JobEnded>(&message)) return end(ended->succeeded, message);
  if (const auto* lost = std::get_if<SessionLost>(&message)) {
    if (is_over_ || !is_leader_lost(*lost)) return end(false, message);
    return lose(*lost);
  }
  handler_(message);
}

// A leader that was deposed may be followed by another at once. Then our workers must not have a
// grace, as at the end of a lease.
void ElectedSession::lose(const SessionLost& lost) {
  if (is_over_) return;
  is_seated_ = false;
  if (lost.is_fenced && !leads_) fenced_ = std::move(session_);
  session_.reset();
  const bool breaks_round = round_ > 0 && !joining_;
  // The agent tells of a round that broke.
  if (!breaks_round)
    log::warning(fmt::format("{}; looking for the next leader", lost.error.message()));
  if (breaks_round)
    handler_(RoundBroken{
        .round = round_,
        .cause = {.hostname = leader_,
                  .message = fmt::format("the leader of the rendezvous ({}) was lost: {}", leader_,
                                         lost.error.message())},
        .is_fenced = lost.is_fenced || lost.error.code() == ErrorCode::kDeposed});
  // After that: it waits for slow nodes, and workers had to be ended at once.
  if (std::exchange(leads_, false)) ways_.stop_leading();
  election_.leader_lost();
}

void ElectedSession::end(bool succeeded, const HostMessage& message) {
  is_over_ = true;
  election_.job_ended(succeeded);
  handler_(message);
}

}  // namespace ddprun::agent
