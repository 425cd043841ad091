#include "tests/sim/sim_leader.h"

#include <gtest/gtest.h>

#include <utility>
#include <variant>

namespace ddprun::sim {

namespace {

constexpr int kMostReconnectMs = 500;
constexpr int kSilentLooks = 4;  // looks at a leader that stands still, each after a second
// A refusal that lasts longer may count; clocks differ by a hundredth.
constexpr milliseconds kFirewall{2400};
// Refusals that are further apart are two, by each clock.
constexpr milliseconds kBetweenTries{2600};
constexpr int kUnseenDeaths = 8;  // one in so many
// A death that its followers see is no firewall's work, and they do not wait.
constexpr milliseconds kSeenWithin{1000};
const Error kNoAnswer(ErrorCode::kUnavailable, "no answer");

}  // namespace

SimLeader::SimLeader(const World& world, std::string name, double clock_rate)
    : world_(world),
      name_(std::move(name)),
      clock_(world.time.now(), clock_rate),
      leadership_(rules(world.is_daemon)) {}

// As Election has them.
rendezvous::LeadershipRules SimLeader::rules(bool is_daemon) {
  rendezvous::LeadershipRules rules{.etcd = "etcd",
                                    .contact_limit = std::chrono::hours(2),
                                    .search_limit = std::chrono::hours(2)};
  if (!is_daemon) return rules;
  rules.margin = milliseconds(300);
  rules.look_while_following = milliseconds(1000);
  rules.retakes = true;
  return rules;
}

void SimLeader::start() { perform(leadership_.start(now())); }

// Runs `act` now. While the host stands still, `act` waits until it runs again, in order.
void SimLeader::when_awake(std::function<void()> act) {
  if (is_dead_) return;
  if (world_.time.now() >= awake_at_) return act();
  world_.time.at(awake_at_, [this, act = std::move(act)] { when_awake(act); });
}

// ---- faults ----

void SimLeader::kill() {
  is_dead_ = true;
  if (host_ != nullptr) died_leading_ = world_.time.now();
  if (host_ != nullptr) host_->end(true);
  host_ = nullptr;
}

void SimLeader::stall(milliseconds length) {
  awake_at_ = std::max(awake_at_, world_.time.now() + length);
}

void SimLeader::cut(milliseconds length) {
  cut_until_ = std::max(cut_until_, world_.time.now() + length);
}

void SimLeader::refuse(milliseconds length) {
  // Nobody may have tried between two refusals that follow each other so soon: they are one.
  if (world_.time.now() >= refused_until_ + kBetweenTries) refused_since_ = world_.time.now();
  was_refused_for_long_ =
      was_refused_for_long_ || world_.time.now() + length - refused_since_ >= kFirewall;
  refused_until_ = std::max(refused_until_, world_.time.now() + length);
}

void SimLeader::withdraw() {
  is_withdrawn_ = true;
  leadership_.withdraw();
}

// ---- what Leadership wants ----

void SimLeader::perform(const rendezvous::LeadershipActions& actions) {
  for (const rendezvous::LeadershipAction& action : actions)
    std::visit([this](const auto& one) { perform(one); }, action);
  look_again();
}

void SimLeader::look_again() {
  const Time look = leadership_.look_again_at();
  if (look == Time::max() || look == timer_at_) return;
  timer_at_ = look;
  world_.time.at(clock_.global(look), [this] {
    when_awake([this] {
      timer_at_ = Time{};
      perform(leadership_.time_passed(now()));
    });
  });
}

SimEtcd::Answered SimLeader::answered(rendezvous::Ticket ticket,
                                      std::function<void(const SimEtcd::Answer&)> act) {
  return [this, ticket, act = std::move(act)](const std::optional<SimEtcd::Answer>& answer) {
    when_awake([this, ticket, act, answer] {
      if (!answer) return perform(leadership_.etcd_failed(ticket, kNoAnswer, now()));
      act(*answer);
    });
  };
}

void SimLeader::perform(const rendezvous::ReadKey& action) {
  world_.etcd.read(
      reaches_etcd(), answered(action.ticket, [this, action](const SimEtcd::Answer& answer) {
        found_ = answer.record;
        perform(leadership_.key_read(action.ticket, {answer.leader, answer.revision}, now()));
      }));
}

void SimLeader::perform(const rendezvous::GrantLease& action) {
  world_.etcd.grant(
      reaches_etcd(), [this, action, asked_at = now()](const std::optional<LeaseId>& lease) {
        when_awake([this, action, asked_at, lease] {
          perform(lease ? leadership_.lease_granted(action.ticket, *lease, world_.etcd.lease(),
                                                    asked_at, now())
                        : leadership_.etcd_failed(action.ticket, kNoAnswer, now()));
        });
      });
}

// Behind a firewall that refuses, a leader may live. A leader that we never reached keeps the key;
// so does one that is refused for a short time.
void SimLeader::check_overtaken(std::int64_t revision) const {
  const auto& leader = world_.etcd.leader();
  if (revision == 0 || !leader || leader->revision != revision) return;
  EXPECT_TRUE(leader->value == reached_ || &world_.holder_of(leader->value) == this)
      << "a leader takes over from one that it never reached";
  if (!world_.is_refusal_doubted) return;
  const SimLeader& overtaken = world_.holder_of(leader->value);
  EXPECT_TRUE(!overtaken.listens(leader->value) || overtaken.was_refused_for_long_)
      << "a leader that lives is overtaken while a firewall is loaded";
  if (overtaken.died_leading_ && !world_.may_die_unseen) {
    EXPECT_LE(world_.time.now() - *overtaken.died_leading_, kSeenWithin)
        << "a leader that died is overtaken late";
  }
}

void SimLeader::perform(const rendezvous::TakeKey& action) {
  check_overtaken(action.if_revision);
  world_.etcd.take_key(reaches_etcd(), own_value(), action.lease, action.if_revision,
                       answered(action.ticket, [this, action](const SimEtcd::Answer& answer) {
                         found_ = answer.record;
                         perform(leadership_.key_taken(action.ticket, answer.is_done,
                                                       {answer.leader, answer.revision}, now()));
                       }));
}

void SimLeader::perform(const rendezvous::ProbeLeader& action) {
  world_.time.after(world_.time.up_to(world_.most_delay_ms), [this, action] {
    when_awake([this, action] {
      const SimLeader& leader = world_.holder_of(action.value);
      const bool is_taken = leader.listens(action.value) && !leader.is_refused();
      if (is_taken) reached_ = action.value;
      const auto refused = world_.is_refusal_doubted ? rendezvous::LeaderRefusal::kPerhaps
                                                     : rendezvous::LeaderRefusal::kYes;
      perform(is_taken ? leadership_.probed(action.ticket, now())
                       : leadership_.probed_in_vain(action.ticket, refused, now()));
    });
  });
}

void SimLeader::perform(const rendezvous::Follow& action) {
  world_.time.after(world_.time.up_to(world_.most_delay_ms), [this, action, turn = ++follow_] {
    when_awake([this, action, turn] {
      if (turn != follow_) return;
      SimLeader& leader = world_.holder_of(action.value);
      if (leader.host() == nullptr) return perform(leadership_.leader_lost(now()));
      if (!world_.is_daemon) perform(leadership_.followed(now()));  // a daemon only waits there
      watched_ = action.value;
      watch_leader(leader, turn, 0);
    });
  });
}

// As its session would: a dead leader is noticed at once, one that stands still by its silence.
void SimLeader::watch_leader(SimLeader& leader, int turn, int silent_looks) {
  world_.time.after(milliseconds(100), [this, &leader, turn, silent_looks] {
    when_awake([this, &leader, turn, silent_looks] {
      if (turn != follow_) return;
      const bool stands_still = world_.time.now() < leader.awake_at_;
      if (leader.host() == nullptr || leader.is_refused() || silent_looks > kSilentLooks * 10)
        return lose(leader);
      watch_leader(leader, turn, stands_still ? silent_looks + 1 : 0);
    });
  });
}

// The kernel of a process that ends closes the connections; a session's with unread bytes it
// resets. A firewall only resets.
void SimLeader::lose(SimLeader& leader) {
  const bool is_unseen = world_.may_die_unseen && world_.time.one_in(kUnseenDeaths);
  const bool is_closed = leader.host() == nullptr && !leader.is_refused() && !is_unseen;
  if (is_closed)
    world_.time.after(world_.time.up_to(world_.most_delay_ms), [this, value = watched_] {
      when_awake([this, value] { perform(leadership_.leader_closed(value, now())); });
    });
  watched_.clear();
  perform(leadership_.leader_lost(now(), is_closed && world_.time.one_in(2)));
}

void SimLeader::perform(const rendezvous::WatchKey& action) {
  const auto hear = [this, turn = ++watch_](bool is_changed) {
    when_awake([this, turn, is_changed] {
      if (turn == watch_)
        perform(is_changed ? leadership_.key_changed(now()) : leadership_.watch_ended(now()));
    });
  };
  // An agent that is cut off hears when it is not any more.
  const auto tell = [this, hear](bool is_changed) {
    if (reaches_etcd()) return hear(is_changed);
    world_.time.at(cut_until_ + world_.time.up_to(kMostReconnectMs),
                   [hear, is_changed] { hear(is_changed); });
  };
  world_.etcd.watch(
      action.from_revision, [tell] { tell(true); }, [tell] { tell(false); });
}

void SimLeader::perform(const rendezvous::StopWatching& /*action*/) { ++watch_; }

void SimLeader::perform(const rendezvous::Lead& /*action*/) {
  EXPECT_FALSE(is_withdrawn_) << "a leader whose node leaves";
  ++follow_;
  recorded_ = {};
  job_ = found_.value_or(SimEtcd::Record{});
  if (job_.succeeded) return leadership_.stop();
  hosts_.push_back(std::make_unique<SimHost>(
      world_.time, world_.plan, job_.job, clock_,
      SimHost::Callbacks{
          .when_awake = [this](auto act) { when_awake(act); },
          .record_round =
              [this](const rendezvous::JobRecord& record, std::function<void()> recorded) {
                job_ = {.job = record};
                recorded_ = std::move(recorded);
                perform(leadership_.publish(now()));
              },
          .may_grant = [this] { return may_grant(); },
          .record_end = record_end(),
          .tells = world_.tells,
          .ended =
              [this](bool succeeded) {
                if (!world_.is_daemon) world_.etcd.job_ended(leadership_.revision(), succeeded);
              }}));
  host_ = hosts_.back().get();
}

// Daemons record the end before they tell it.
std::function<void(bool, std::function<void()>)> SimLeader::record_end() {
  if (!world_.is_daemon) return {};
  return [this](bool succeeded, std::function<void()> recorded) {
    job_.succeeded = succeeded;
    recorded_ = std::move(recorded);
    perform(leadership_.publish(now()));
  };
}

bool SimLeader::may_grant() {
  if (!leadership_.leads_at(now())) return false;
  const std::int64_t revision = leadership_.revision();
  const auto& holder = world_.etcd.leader();
  EXPECT_TRUE((holder && holder->revision == revision) || world_.etcd.is_overtaken(revision))
      << "a leader whose key is gone gives leases";
  return true;
}

void SimLeader::perform(const rendezvous::RenewLease& action) {
  world_.etcd.keep_alive(
      reaches_etcd(), action.lease,
      [this, action, asked_at = now()](const std::optional<SimEtcd::Answer>& answer) {
        if (!answer) return;
        when_awake([this, action, asked_at, is_there = answer->is_done] {
          perform(leadership_.lease_renewed(
              action.lease, is_there ? world_.etcd.lease() : milliseconds(0), asked_at, now()));
        });
      });
}

// As Election::record_answered().
void SimLeader::perform(const rendezvous::WriteRecord& action) {
  const milliseconds held = world_.record_is_sent(*this);
  world_.etcd.write_record(
      reaches_etcd(), job_, action.if_revision, found_ ? found_->revision : 0, held,
      answered(action.ticket, [this, action, written = job_](const SimEtcd::Answer& answer) {
        const bool leads =
            answer.is_done || (answer.leader && answer.leader->revision == action.if_revision);
        found_ = answer.record;
        const bool is_written =
            found_ && found_->job == written.job && found_->succeeded == written.succeeded;
        if (leads && !is_written)
          return perform(leadership_.etcd_failed(action.ticket, kNoAnswer, now()));
        perform(leadership_.record_written(action.ticket, leads, now()));
      }));
}

void SimLeader::perform(const rendezvous::RecordWritten& /*action*/) {
  const auto recorded = std::exchange(recorded_, {});
  if (!recorded) return;
  world_.dies_before_telling() ? kill() : recorded();
}

void SimLeader::perform(const rendezvous::ReleaseKey& action) {
  world_.etcd.release_key(reaches_etcd(), action.revision);
}

void SimLeader::perform(const rendezvous::StepDown& /*action*/) {
  recorded_ = {};
  ++turn_;
  if (host_ != nullptr) host_->end(true);
  host_ = nullptr;
  perform(leadership_.leader_lost(now()));
}

void SimLeader::perform(const rendezvous::GiveUp& action) {
  ADD_FAILURE() << "a leader gave up: " << action.error.message();
}

}  // namespace ddprun::sim
