#include "rendezvous/failover/elected_session.h"

#include <fmt/format.h>

#include <utility>
#include <variant>

#include "base/log.h"

namespace ddprun::rendezvous {

namespace {

// Whether the next leader may take us. Everything else was said by a leader that lives.
bool is_leader_lost(const SessionLost& lost) {
  const ErrorCode code = lost.error.code();
  return code == ErrorCode::kUnavailable || code == ErrorCode::kDeposed ||
         (code == ErrorCode::kTimedOut && !lost.was_reached);
}

// Who is at the leader's address refused us, or proved nothing, before we knew that he knows the
// job's token: an impostor, or a stranger who got the port of a leader that died.
bool is_unproven(const SessionLost& lost) {
  const ErrorCode code = lost.error.code();
  return !lost.was_reached && (code == ErrorCode::kRejected || code == ErrorCode::kProtocol);
}

// A node that stood still: how long its workers go on before it has a leader again, and by when
// that one has said that the round is over.
constexpr std::chrono::milliseconds kLeaderAskLimit{2000};
constexpr std::chrono::seconds kAnswerLimit{5};

// By then a leader that died has lost its key to another. Who still is at its address and refuses
// us is taken at his word.
constexpr std::chrono::seconds kUnprovenLimit{6};

}  // namespace

ElectedSession::ElectedSession(asio::io_context& loop, ElectionOptions options, Ways ways,
                               MessageHandler handler)
    : ways_(std::move(ways)),
      handler_(std::move(handler)),
      election_(loop, std::move(options),
                {.own_address = ways_.own_address,
                 .lead = [this](JobRecord record) { lead(std::move(record)); },
                 .follow = [this](const Leader& leader) { follow(leader); },
                 .deposed = [this](const std::string& why,
                                   bool stood_still) { deposed(why, stood_still); },
                 .has_round = [this] { return ways_.resumes && memory_.is_round_whole(); },
                 .job_over = [this](bool succeeded) { job_over(succeeded); },
                 .failed = [this](const Error& error) { end(false, SessionLost{error}); },
                 .leads_until = ways_.workers_until}),
      alarm_(loop,
             [this] {
               lost_.is_fenced = true;
               break_round(lost_);
             }),
      wait_(loop, [](const std::string& line) { log::warning(line); }) {
  election_.start();
}

// ---- what the agent wants ----

void ElectedSession::join(const NodeSpec& node) {
  fenced_.reset();
  workers_until_ = {};
  alarm_.set(Time::max());
  memory_.joined(node);
  if (is_let_in_) session_->join(node);
}

// The agent never says it: for the agent this session is the same from the first join to the end.
void ElectedSession::resume(const ResumeRequest& node) { join(node.spec); }

// Without a leader it is said to the next one.
void ElectedSession::report_failure(std::int64_t round, const Failure& failure) {
  memory_.failed(round, failure);
  if (is_let_in_) session_->report_failure(round, failure);
}

void ElectedSession::report_success(std::int64_t round) {
  memory_.succeeded(round);
  if (is_let_in_) session_->report_success(round);
}

// Where the leader is away, or goes before the workers have ended, the next one hears of it, if
// this process lives so long. It must not be the next one.
void ElectedSession::leave(const Failure& reason) {
  memory_.left(reason);
  if (is_let_in_) session_->leave(reason);
  if (ways_.resumes && !leads_ && memory_.is_round_whole()) return election_.withdraw();
  is_over_ = true;
  wait_.end();
  election_.job_ended(false);
}

// The leader answers by ending the call. So from now on that is no loss of the leader, and no other
// leader is looked for.
void ElectedSession::gone() {
  fenced_.reset();
  if (session_) session_->gone();
  alarm_.set(Time::max());
  wait_.end();
  if (std::exchange(is_over_, true)) return;
  election_.job_ended(false);
}

std::optional<WaitStatus> ElectedSession::wait_status() const {
  return session_ ? session_->wait_status() : std::nullopt;
}

Unreached ElectedSession::unreached() const {
  if (is_let_in_) return {};
  Unreached told = election_.unreached();
  if (told.why.empty() && session_) told.why = session_->unreached().why;
  if (told.why.empty()) told.why = last_loss_;
  return told;
}

// The agent tells of a node that joins.
void ElectedSession::begin_wait() {
  if (wait_.is_waiting()) return;
  wait_.begin([this](std::chrono::seconds waited) -> std::string {
    if (!memory_.is_in_round()) return {};
    return fmt::format("waiting for {} s for a leader of the rendezvous: {}", waited.count(),
                       unreached().why);
  });
}

// ---- what the election brings ----

void ElectedSession::lead(JobRecord record) {
  if (is_over_) return;
  session_.reset();
  log::info(
      fmt::format("this node leads the rendezvous from now on; rounds so far: {}, restarts: {}",
                  record.round, record.restarts));
  leads_ = true;
  leader_ = "this node";
  const bool is_forgotten = record.round == 0 && ways_.resumes && memory_.is_round_whole();
  if (is_forgotten) record = remember();
  if (leader_lives_) {
    record.others = record.node_count();
    record.leader_has_seat = false;
  }
  session_ = ways_.lead(
      std::move(record),
      [this](JobRecord next, std::function<void()> recorded) {
        election_.publish(std::move(next), std::move(recorded));
      },
      [this] { return election_.may_grant(); },
      [this](const HostMessage& message) { heard(message); });
  let_in();
}

void ElectedSession::follow(const Leader& leader) {
  if (is_over_) return;
  if (is_let_in_) change_leader(leader);
  session_.reset();
  if (leader_ != leader.hostname) unproven_since_.reset();
  leader_ = leader.hostname;
  session_ = ways_.follow(
      leader, workers_until_, [this] { let_in(); },
      [this](const HostMessage& message) { heard(message); });
}

// All of a job stood still for so long that etcd has forgotten it. The next leader must know its
// round.
JobRecord ElectedSession::remember() {
  JobRecord record = remembered(memory_.resumed());
  JobRecord kept = record;
  --kept.others;
  kept.leader_has_seat = true;
  kept.is_remembered = false;
  election_.publish(std::move(kept), [] {});
  return record;
}

// The leader that let this node in may stand still, or be cut off. Its lease holds.
void ElectedSession::change_leader(const Leader& next) {
  is_let_in_ = false;
  begin_wait();
  lost_ = {.error = Error(ErrorCode::kUnavailable,
                          fmt::format("{} leads the rendezvous now", next.hostname)),
           .lease_ends = session_->lease_ends()};
  session_->abandon();
  goes_on_ = ways_.resumes && memory_.is_in_round();
  const bool is_told = goes_on_ && !memory_.has_left();
  log::warning(lost_.error.message() + (is_told ? "; the workers go on" : ""));
  if (!memory_.is_in_round()) return;
  workers_until_ = lost_.lease_ends;
  if (!goes_on_) return break_round(lost_);
  alarm_.set(workers_until_);
}

// From now on the session says when the lease ends.
void ElectedSession::let_in() {
  if (is_over_) return;
  is_let_in_ = true;
  wait_.end();
  unproven_since_.reset();
  last_loss_.clear();
  leader_lives_ = false;
  workers_until_ = {};
  goes_on_ = false;
  alarm_.set(Time::max());
  if (!leads_) election_.followed();
  memory_.say_to(*session_);
}

// A node that stood still asks first: its workers go on until it is known who leads now. If
// nobody led meanwhile, nothing is lost.
void ElectedSession::ask(SessionLost& lost) {
  const auto now = std::chrono::steady_clock::now();
  asks_until_ = now + kAnswerLimit;
  lost.is_fenced = false;
  lost.lease_ends = now + kLeaderAskLimit;
  lost.may_return = true;
}

void ElectedSession::deposed(const std::string& why, bool stood_still) {
  const Error error(ErrorCode::kDeposed,
                    fmt::format("this node leads the rendezvous no more: {}", why));
  if (leads_) ways_.tell_end(error);
  SessionLost lost{.error = error, .is_fenced = true};
  if (leads_ && stood_still && ways_.resumes) ask(lost);
  lose(std::move(lost));
}

void ElectedSession::job_over(bool succeeded) {
  const std::string& why = lost_.error.message();
  end(succeeded,
      JobEnded{.succeeded = succeeded,
               .cause = {.hostname = leader_,
                         .message = why.empty()
                                        ? "the job failed while this node had no leader"
                                        : fmt::format("the leader of the rendezvous was lost ({}), "
                                                      "and the job failed",
                                                      why)}});
}

// ---- what the leader says ----

void ElectedSession::heard(const HostMessage& message) {
  if (!memory_.told(message)) return;
  if (std::holds_alternative<RoundPublished>(message)) election_.round_begins();
  if (const auto* ended = std::get_if<JobEnded>(&message)) return end(ended->succeeded, message);
  if (const auto* lost = std::get_if<SessionLost>(&message)) {
    if (!is_over_ && (is_leader_lost(*lost) || may_be_another(*lost))) return lose(*lost);
    return end(false, message);
  }
  const auto* const broken = std::get_if<RoundBroken>(&message);
  // The others may have gone on while this node stood still.
  if (broken != nullptr && std::chrono::steady_clock::now() < asks_until_) {
    RoundBroken fenced = *broken;
    fenced.is_fenced = true;
    return handler_(fenced);
  }
  handler_(message);
}

// Whether the leader may be somebody else than who said this.
bool ElectedSession::may_be_another(const SessionLost& lost) {
  if (!is_unproven(lost)) return false;
  const auto now = std::chrono::steady_clock::now();
  if (!unproven_since_) unproven_since_ = now;
  return now - *unproven_since_ < kUnprovenLimit;
}

// The session with the leader, or the try to have one, is over. Where it was let in, its lease may
// hold for a while. A try that failed changes nothing of that: a leader that dies may still take a
// connection.
void ElectedSession::lose(SessionLost lost) {
  if (is_over_) return;
  if (is_let_in_ && !leads_ && lost.stood_still && ways_.resumes) ask(lost);
  if (lost.is_fenced && !leads_) fenced_ = std::move(session_);
  session_.reset();
  begin_wait();
  const bool was_let_in = std::exchange(is_let_in_, false);
  const auto now = std::chrono::steady_clock::now();
  // A leader that asks has one, too.
  const bool was_guest = was_let_in && (!leads_ || lost.may_return);
  leader_lives_ = leader_lives_ || (was_guest && lost.error.code() == ErrorCode::kDeposed);
  const bool had_lease = was_guest && lost.lease_ends != Time{};
  // The lease ended while this process stood still.
  if (had_lease && lost.lease_ends <= now) lost.is_fenced = true;
  const bool has_lease = was_guest && !lost.is_fenced && lost.lease_ends > now;
  if (has_lease && memory_.is_in_round()) {
    workers_until_ = lost.lease_ends;
    goes_on_ = ways_.resumes && lost.may_return;
    lost_ = lost;
    alarm_.set(workers_until_);
    ways_.workers_until(workers_until_);
  } else if (!memory_.is_in_round()) {
    ways_.workers_until({});
  }
  const bool goes_on = goes_on_ && now < workers_until_;
  // Said once of a leader that is tried again and again.
  const bool is_news = lost.error.message() != std::exchange(last_loss_, lost.error.message());
  if (!goes_on && memory_.is_in_round()) {
    break_round(lost);  // the agent tells of it
  } else if (is_news) {
    log::warning(fmt::format(
        "{}; looking for {}", lost.error.message(),
        goes_on && !memory_.has_left() ? "the leader, and the workers go on" : "the next leader"));
  }
  // After that: it waits for slow nodes, and workers had to be ended at once.
  if (std::exchange(leads_, false)) ways_.stop_leading();
  election_.leader_lost(lost.was_closed);
}

// A leader that was deposed may be followed by another at once. Then our workers must not have a
// grace, as at the end of a lease.
void ElectedSession::break_round(const SessionLost& lost) {
  if (lost.is_fenced) workers_until_ = {};
  goes_on_ = false;
  const RoundBroken broken{
      .round = memory_.round(),
      .cause = {.hostname = leader_,
                .message = fmt::format("the leader of the rendezvous ({}) was lost: {}", leader_,
                                       lost.error.message())},
      .is_fenced = lost.is_fenced || lost.error.code() == ErrorCode::kDeposed};
  // If it broke before, the agent is told again: workers that still end must not have their grace.
  if (memory_.is_round_whole()) memory_.told(broken);
  handler_(broken);
}

void ElectedSession::end(bool succeeded, const HostMessage& message) {
  is_over_ = true;
  wait_.end();
  election_.job_ended(succeeded);
  handler_(message);
}

}  // namespace ddprun::rendezvous
