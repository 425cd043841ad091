#include "rendezvous/election/election.h"

#include <fmt/format.h>

#include <utility>
#include <variant>

#include "base/log.h"
#include "base/net/liveness_probe.h"
#include "base/net/refusal.h"

namespace ddprun::rendezvous {

using asio::ip::tcp;
using namespace asio::experimental::awaitable_operators;  // NOLINT(google-build-using-namespace):
                                                          // operator||

namespace {

Time now() { return std::chrono::steady_clock::now(); }

// For a line of a wait.
std::string name_of(const Leader& leader) {
  return fmt::format("the leader, {}, at {} port {}", leader.hostname, leader.address, leader.port);
}

}  // namespace

Election::Election(asio::io_context& loop, ElectionOptions options, Handlers handlers)
    : loop_(loop),
      options_(std::move(options)),
      handlers_(std::move(handlers)),
      keys_(job_keys(options_.prefix, options_.rdzv_id)),
      gate_(std::make_shared<LoopGate<Election>>(loop, *this)),
      leadership_({.etcd = members_text(options_.etcd.members),
                   .margin = options_.margin,
                   .contact_limit = options_.contact_limit,
                   .search_limit = options_.search_limit,
                   .follows_only = options_.follows_only,
                   .look_while_following = options_.look_while_following,
                   .retakes = options_.retakes}),
      alarm_(loop, [this] { perform(leadership_.time_passed(now())); }),
      etcd_(loop, options_.etcd),
      liveness_([this](const std::string& leader) {
        perform(leadership_.leader_closed(leader, now()));
      }) {}

Election::~Election() { gate_->close(); }

void Election::start() { perform(leadership_.start(now())); }

void Election::followed() {
  is_member_ = true;
  liveness_.followed();
  perform(leadership_.followed(now()));
}

void Election::leader_lost(bool was_closed) { perform(leadership_.leader_lost(now(), was_closed)); }

void Election::publish(JobRecord record, std::function<void()> recorded) {
  job_ = {.record = std::move(record)};
  job_.record.leader = options_.hostname;
  recorded_ = std::move(recorded);
  perform(leadership_.publish(now()));
}

void Election::job_ended(bool succeeded) {
  const bool led = leadership_.leads();
  const std::int64_t revision = leadership_.revision();
  leadership_.stop();
  etcd_.stop_watching();
  alarm_.set(Time::max());
  if (!led) return;
  job_.state = succeeded ? RecordedJob::State::kSucceeded : RecordedJob::State::kFailed;
  // Before the first round there is no lease for a record, and nothing to record. The key goes with
  // its own lease.
  if (record_lease_ != 0)
    etcd_.transact_last(write_last_record(keys_, {revision, found_ ? found_->revision : 0},
                                          encode(job_), record_lease_));
}

void Election::resign(std::function<void()> done) {
  const bool led = leadership_.leads();
  const std::int64_t revision = leadership_.revision();
  leadership_.stop();
  etcd_.stop_watching();
  alarm_.set(Time::max());
  if (!led) return asio::post(loop_, std::move(done));
  etcd_.transact(give_up_leader_key(keys_, revision),
                 [done = std::move(done)](const Result<v3::TxnResponse>&) { done(); });
}

// ---- what Leadership wants ----

void Election::perform(const LeadershipActions& actions) {
  for (const LeadershipAction& action : actions)
    std::visit([this](const auto& one) { perform(one); }, action);
  alarm_.set(leadership_.look_again_at());
}

void Election::transact(Ticket ticket, v3::TxnRequest request,
                        std::function<void(const TransactionAnswer&)> answer) {
  etcd_.transact(std::move(request), [this, ticket, answer = std::move(answer)](
                                         const Result<v3::TxnResponse>& response) {
    // A lease that is gone is no reason to give up: there can be another.
    if (!response && response.error().code() == ErrorCode::kNotFound) {
      record_lease_ = 0;
      return etcd_failed(ticket, {ErrorCode::kUnavailable, response.error().message()});
    }
    if (!response) return etcd_failed(ticket, response.error());
    const auto decoded = decode_answer(*response, keys_);
    if (!decoded) return etcd_failed(ticket, decoded.error());
    problem_.clear();
    asking_.end();
    answer(*decoded);
  });
}

// A daemon waits as long as it must: it says for what.
void Election::etcd_failed(Ticket ticket, const Error& error) {
  problem_ = error.message();
  if (!asking_.is_waiting()) asking_.begin(now());
  if (options_.listens_at && error.code() == ErrorCode::kUnavailable && asking_.is_due(now()))
    log::warning(fmt::format("waiting for {} s for an answer of etcd at {}: {}; asking again",
                             asking_.waited(now()).count(), members_text(options_.etcd.members),
                             error.message()));
  perform(leadership_.etcd_failed(ticket, error, now()));
}

void Election::perform(const ReadKey& action) {
  transact(action.ticket, read_keys(keys_),
           [this, ticket = action.ticket](const TransactionAnswer& answer) {
             found_ = answer.record;
             key_seen(answer.leader);
             if (!answer.leader && !leadership_.leads() && is_over()) return;
             perform(leadership_.key_read(ticket, {answer.leader, answer.revision}, now()));
           });
}

void Election::perform(const GrantLease& action) {
  etcd_.grant(options_.lease, [this, ticket = action.ticket,
                               asked_at = now()](const Result<EtcdClient::Grant>& grant) {
    if (!grant) return etcd_failed(ticket, grant.error());
    perform(leadership_.lease_granted(ticket, grant->lease, grant->length, asked_at, now()));
  });
}

void Election::perform(const TakeKey& action) {
  const Result<Leader> own = handlers_.own_address();
  if (!own) return fail(own.error());
  transact(action.ticket, take_leader_key(keys_, action.if_revision, encode(*own), action.lease),
           [this, ticket = action.ticket](const TransactionAnswer& answer) {
             found_ = answer.record;
             perform(leadership_.key_taken(ticket, answer.is_done, {answer.leader, answer.revision},
                                           now()));
           });
}

// Tells whether the job that this node is in has ended, while nobody leads. If it is in none, what
// there is of an older one does not matter. A job that stood still as a whole may be forgotten, and
// goes on.
bool Election::is_over() {
  if (!is_member_ || options_.follows_only) return false;  // their record is the daemons'
  if (!found_ && had_round_ && !handlers_.has_round()) {
    fail({ErrorCode::kUnavailable,
          "rendezvous: nobody leads the job, and etcd has no record of it any more"});
    return true;
  }
  const auto job = found_ ? decode_record(found_->value) : RecordedJob{};
  if (!job || job->state == RecordedJob::State::kRuns) return false;
  leadership_.stop();
  handlers_.job_over(job->state == RecordedJob::State::kSucceeded);
  return true;
}

void Election::key_seen(const std::optional<KeyHolder>& holder) {
  if (holder) return nobody_since_.reset();
  if (!nobody_since_) nobody_since_ = now();
  leader_problem_.clear();
}

UnreachedHost Election::unreached() const {
  UnreachedHost told{.why = leader_problem_, .ends = leadership_.gives_up_at()};
  if (!problem_.empty()) told.why = "etcd does not answer: " + problem_;
  if (told.why.empty() && nobody_since_)
    told.why = fmt::format(
        "there has been no leader in etcd for {} s",
        std::chrono::duration_cast<std::chrono::seconds>(now() - *nobody_since_).count());
  return told;
}

asio::awaitable<void> Election::probe(asio::io_context& loop, SharedGate gate, ProbeLeader action,
                                      tcp::endpoint to) {
  tcp::socket socket = open_socket(loop, to);
  asio::steady_timer timer(loop);
  const auto first = co_await (socket.async_connect(to, kAsTuple) || expires(timer, kProbeLimit));
  Election* const self = gate->owner();
  if (self == nullptr) co_return;
  const std::string who = name_of(*decode_leader(action.value));
  if (first.index() != 0) {
    self->leader_problem_ = who + " does not answer";
    co_return self->perform(
        self->leadership_.probed_in_vain(action.ticket, LeaderRefusal::kNo, now()));
  }
  const boost::system::error_code failure = std::get<0>(std::get<0>(first));
  if (!failure) co_return self->taken(action, std::move(socket));
  self->leader_problem_ = fmt::format("{}: {}", who, failure.message());
  const bool is_refused = is_refused_by_host(socket, failure);
  const LeaderRefusal refused = is_refused ? self->judge(to) : LeaderRefusal::kNo;
  self->perform(self->leadership_.probed_in_vain(action.ticket, refused, now()));
}

// Daemons believe a refusal at once, and who follows them never takes the key.
void Election::taken(const ProbeLeader& action, tcp::socket socket) {
  if (!options_.listens_at && !options_.follows_only)
    liveness_.hold(action.value, std::move(socket));
  perform(leadership_.probed(action.ticket, now()));
}

// If daemons take the key from one that lives, no worker is lost. They do it at once.
LeaderRefusal Election::judge(const tcp::endpoint& leader) const {
  switch (judge_refusal(leader)) {
    case Refusal::kClosed:
      return LeaderRefusal::kYes;
    case Refusal::kForged:
      return LeaderRefusal::kNo;
    case Refusal::kDoubt:
      return options_.listens_at ? LeaderRefusal::kYes : LeaderRefusal::kPerhaps;
  }
  return LeaderRefusal::kNo;
}

void Election::perform(const ProbeLeader& action) {
  const auto leader = decode_leader(action.value);
  boost::system::error_code no_address;
  const auto address = asio::ip::make_address(leader ? leader->address : std::string(), no_address);
  if (!leader || no_address)
    return fail(leader ? Error(ErrorCode::kProtocol, "rendezvous: the leader has no address")
                       : leader.error());
  if (options_.listens_at == *leader)
    return perform(leadership_.probed_in_vain(action.ticket, LeaderRefusal::kYes, now()));
  // Nobody would answer there, and each would take the lead from the other, again and again.
  const bool is_elsewhere = address.is_loopback() && leader->hostname != options_.hostname;
  if (is_elsewhere && (options_.follows_only || options_.listens_at))
    return pass_by(action, *leader);
  if (is_elsewhere)
    return fail(
        {ErrorCode::kInvalidArgument,
         fmt::format("rendezvous: the leader, {}, is at {}, which other hosts do not reach: "
                     "give --rdzv-endpoint an address of etcd that all hosts have in common, "
                     "or each host its own address by --local-addr",
                     leader->hostname, leader->address)});
  spawn(loop_, "probe", probe(loop_, gate_, action, {address, leader->port}));
}

// A daemon of another host. A fault there must not end the jobs: it counts as silent.
void Election::pass_by(const ProbeLeader& action, const Leader& leader) {
  leader_problem_ = fmt::format(
      "the leader, {}, is at {}, which other hosts do not reach: expected an address "
      "of its host in --listen of its ddprund",
      leader.hostname, leader.address);
  if (std::exchange(passed_by_, action.value) != action.value)
    log::warning(leader_problem_ + "; waiting for another leader");
  perform(leadership_.probed_in_vain(action.ticket, LeaderRefusal::kNo, now()));
}

void Election::perform(const Follow& action) {
  leader_problem_.clear();
  handlers_.follow(*decode_leader(action.value));
}

void Election::perform(const WatchKey& action) {
  etcd_.watch(keys_.leader, action.from_revision,
              {.changed = [this] { perform(leadership_.key_changed(now())); },
               .ended = [this] { perform(leadership_.watch_ended(now())); }});
}

void Election::perform(const StopWatching& /*action*/) { etcd_.stop_watching(); }

void Election::perform(const Lead& /*action*/) {
  if (is_over()) return;
  liveness_.drop_all();
  leader_problem_.clear();
  nobody_since_.reset();
  is_member_ = true;
  record_lease_ = 0;
  recorded_ = {};
  job_ = {};
  if (found_) {
    const auto job = decode_record(found_->value);
    if (!job) return fail(job.error());
    // The one before is over, and this is the next job of its id.
    if (job->state == RecordedJob::State::kRuns) job_ = *job;
  }
  // The next leader would need it if this one went before its first round.
  if (job_.record.round > 0) perform(leadership_.publish(now()));
  tell_lease();
  handlers_.lead(job_.record);
}

void Election::tell_lease() {
  if (leadership_.leads() && handlers_.leads_until)
    handlers_.leads_until(leadership_.leads_until());
}

void Election::perform(const RenewLease& action) {
  etcd_.keep_alive(action.lease, [this, lease = action.lease, asked_at = now()](
                                     const Result<std::chrono::milliseconds>& length) {
    if (length) perform(leadership_.lease_renewed(lease, *length, asked_at, now()));
    tell_lease();
  });
  // Much less often: it is so much longer.
  if (record_lease_ == 0 || now() < renew_record_at_) return;
  renew_record_at_ = now() + record_lease() / 5;
  etcd_.keep_alive(record_lease_, [this](const Result<std::chrono::milliseconds>& length) {
    if (!length || length->count() > 0) return;
    record_lease_ = 0;  // and the record is gone with it
    if (job_.record.round > 0) perform(leadership_.publish(now()));
  });
}

// Guests may notice the end of their leader as late as that of their lease.
std::chrono::seconds Election::record_lease() const {
  return kRecordLease + std::chrono::ceil<std::chrono::seconds>(options_.node_lease);
}

void Election::perform(const WriteRecord& action) {
  if (record_lease_ != 0) return write_record(action);
  etcd_.grant(record_lease(), [this, action](const Result<EtcdClient::Grant>& grant) {
    if (!grant) return perform(leadership_.etcd_failed(action.ticket, grant.error(), now()));
    record_lease_ = grant->lease;
    write_record(action);
  });
}

void Election::write_record(const WriteRecord& action) {
  const KeyHolder written{.value = encode(job_), .lease = record_lease_};
  transact(action.ticket,
           rendezvous::write_record(keys_, {action.if_revision, found_ ? found_->revision : 0},
                                    written.value, written.lease),
           [this, action, written](const TransactionAnswer& answer) {
             record_answered(action, written, answer);
           });
}

// If we lead still, but the record has changed, an earlier write of ours was done after all. If it
// wrote the same, all is well. Otherwise the next try knows better.
void Election::record_answered(const WriteRecord& action, const KeyHolder& written,
                               const TransactionAnswer& answer) {
  const bool leads =
      answer.is_done || (answer.leader && answer.leader->revision == action.if_revision);
  found_ =
      answer.is_done ? KeyHolder{written.value, answer.revision, written.lease} : answer.record;
  const bool is_written = found_ && found_->value == written.value;
  // Another write may have had a lease of its own: the one that the record has is renewed.
  if (is_written) record_lease_ = found_->lease;
  if (leads && !is_written) {
    const Error error(ErrorCode::kUnavailable, "the record has changed");
    return perform(leadership_.etcd_failed(action.ticket, error, now()));
  }
  perform(leadership_.record_written(action.ticket, leads, now()));
}

void Election::perform(const RecordWritten& /*action*/) {
  if (const auto recorded = std::exchange(recorded_, {})) recorded();
}

void Election::perform(const ReleaseKey& action) {
  etcd_.transact_last(give_up_leader_key(keys_, action.revision));
}

void Election::perform(const StepDown& action) {
  record_lease_ = 0;
  recorded_ = {};
  handlers_.lost_leadership(action.why, action.was_suspended);
}

void Election::perform(const GiveUp& action) { fail(action.error); }

void Election::fail(const Error& error) {
  leadership_.stop();
  etcd_.stop_watching();
  handlers_.failed(error);
}

}  // namespace ddprun::rendezvous
