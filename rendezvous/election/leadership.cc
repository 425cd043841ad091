#include "rendezvous/election/leadership.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/duration.h"

namespace ddprun::rendezvous {
namespace {

// A process that sees the end of its lease so late did not run meanwhile.
constexpr std::chrono::milliseconds kSuspended{200};

void append(LeadershipActions& actions, LeadershipActions more) {
  for (LeadershipAction& action : more) actions.push_back(std::move(action));
}

}  // namespace

Leadership::Leadership(LeadershipRules rules)
    : rules_(std::move(rules)), is_withdrawn_(rules_.follows_only) {
  DDPRUN_ASSERT(!rules_.follows_only || rules_.look_while_following.count() > 0);
}

// ---- a candidate ----

LeadershipActions Leadership::start(Time now) {
  contact_ends_ = now + rules_.contact_limit;
  search_ends_ = now + rules_.search_limit;
  return read(now);
}

LeadershipActions Leadership::leader_lost(Time now, bool was_closed) {
  if (step_ == Step::kOver) return {};
  if (was_closed) closed_at_ = now;
  followed_.reset();
  // It let nobody in: soon again, and not with more time.
  if (std::exchange(is_following_, false)) return pause(rules_.retry, now);
  // Something on the way closed the other connection: the leader lived on.
  if (closed_at_ && now >= *closed_at_ + rules_.ends_within) closed_at_.reset();
  search_ends_ = now + rules_.search_limit;
  return read(now);
}

// A candidate whose probe was refused already need not wait any more.
LeadershipActions Leadership::leader_closed(const std::string& value, Time now) {
  if (step_ == Step::kOver || value != seen_.value) return {};
  closed_at_ = now;
  return step_ == Step::kPausing && refused_since_ ? read(now) : LeadershipActions{};
}

LeadershipActions Leadership::read(Time now) {
  if (auto over = out_of_time(now)) return *over;
  step_ = Step::kReading;
  return {ReadKey{++ticket_}};
}

LeadershipActions Leadership::key_read(Ticket ticket, const KeyView& view, Time now) {
  const bool is_check = (step_ == Step::kLeading || follows()) && ticket == check_ticket_;
  if (!is_check && is_late(ticket, Step::kReading)) return {};
  const std::optional<KeyHolder>& holder = view.holder;
  etcd_revision_ = view.revision;
  if (is_check)
    return leads() ? checked_as_leader(holder, now) : looked_while_following(holder, now);
  is_contacted_ = true;
  // We took it, and the answer was lost.
  if (holder && lease_ != 0 && holder->lease == lease_ && now < lease_ends_)
    return lead(holder->revision, now);
  return holder ? follow_or_probe(*holder, now) : grant(0, now);
}

WatchKey Leadership::watch() {
  is_watched_ = true;
  return {etcd_revision_ + 1};
}

LeadershipActions Leadership::follow_or_probe(const KeyHolder& holder, Time now) {
  if (followed_ == holder) return stay(now);
  // A session with this one is being opened: let it.
  if (is_following_ && holder == seen_) {
    wait_as(Step::kFollowing, now);
    return {watch()};
  }
  is_following_ = false;
  if (seen_ != holder) {
    refused_since_.reset();
    closed_at_.reset();
  }
  seen_ = holder;
  // Ours, of before: nobody has led since.
  if (rules_.retakes && past_lease_ != 0 && holder.lease == past_lease_)
    return grant(holder.revision, now);
  step_ = Step::kProbing;
  return {watch(), ProbeLeader{++ticket_, seen_.value}};
}

void Leadership::wait_as(Step step, Time now) {
  step_ = step;
  check_ticket_ = 0;
  const auto look = rules_.look_while_following;
  check_at_ = look.count() > 0 ? now + look : Time::max();
}

LeadershipActions Leadership::looked_while_following(const std::optional<KeyHolder>& holder,
                                                     Time now) {
  if (holder != seen_) return holder ? follow_or_probe(*holder, now) : grant(0, now);
  check_at_ = now + rules_.look_while_following;
  if (is_watched_) return {};
  return {watch()};
}

LeadershipActions Leadership::probed(Ticket ticket, Time now) {
  if (is_late(ticket, Step::kProbing)) return {};
  if (std::exchange(followed_, std::nullopt)) search_ends_ = now + rules_.search_limit;
  is_following_ = true;
  refused_since_.reset();
  reached_ = seen_;
  wait_as(Step::kFollowing, now);
  return {Follow{seen_.value}};
}

LeadershipActions Leadership::probed_in_vain(Ticket ticket, LeaderRefusal refused, Time now) {
  if (is_late(ticket, Step::kProbing)) return {};
  if (refused == LeaderRefusal::kPerhaps && closed_at_) refused = LeaderRefusal::kYes;
  if (refused != LeaderRefusal::kPerhaps) refused_since_.reset();
  if (refused == LeaderRefusal::kNo || seen_ != reached_) return pause(rules_.look_again, now);
  if (refused == LeaderRefusal::kPerhaps) {
    const bool is_another = now > std::exchange(refused_at_, now) + rules_.refused_within;
    if (!refused_since_ || is_another) refused_since_ = now;
  }
  const bool may_live = refused_since_ && now < *refused_since_ + rules_.refused_for;
  return may_live ? pause(rules_.retry, now) : grant(seen_.revision, now);
}

LeadershipActions Leadership::grant(std::int64_t if_revision, Time now) {
  if (is_withdrawn_) return await_another(now);
  if_revision_ = if_revision;
  is_following_ = false;
  step_ = Step::kGranting;
  return {GrantLease{++ticket_}};
}

// Many may wait like this one: the watch tells them, and they need not ask often.
LeadershipActions Leadership::await_another(Time now) {
  if (!rules_.follows_only) return pause(rules_.retry, now);
  LeadershipActions actions = {watch()};
  append(actions, pause(rules_.look_again, now));
  return actions;
}

LeadershipActions Leadership::lease_granted(Ticket ticket, LeaseId lease,
                                            std::chrono::milliseconds length, Time asked_at,
                                            Time now) {
  if (is_late(ticket, Step::kGranting)) return {};
  if (is_withdrawn_) return pause(rules_.retry, now);
  lease_ = lease;
  lease_ends_ = asked_at + length - rules_.margin;
  renew_at_ = asked_at + rules_.renew_every;
  step_ = Step::kTaking;
  return {TakeKey{++ticket_, lease_, if_revision_}};
}

LeadershipActions Leadership::key_taken(Ticket ticket, bool is_done, const KeyView& view,
                                        Time now) {
  if (is_late(ticket, Step::kTaking)) return {};
  etcd_revision_ = view.revision;
  if (is_done) return lead(view.revision, now);
  const std::optional<KeyHolder>& holder = view.holder;
  // An earlier try of ours may have been done, although its answer was lost.
  if (holder && holder->lease == lease_) return lead(holder->revision, now);
  if (holder) return follow_or_probe(*holder, now);
  return pause(rules_.retry, now);
}

LeadershipActions Leadership::etcd_failed_leader(Ticket ticket, const Error& error, Time now) {
  if (ticket != record_ticket_ && ticket != check_ticket_) return {};
  if (error.code() != ErrorCode::kUnavailable) return step_down(error.message(), now);
  (ticket == record_ticket_ ? write_at_ : check_at_) = now + rules_.retry;
  return {};
}

LeadershipActions Leadership::etcd_failed(Ticket ticket, const Error& error, Time now) {
  if (step_ == Step::kOver || ticket == 0) return {};
  if (step_ == Step::kLeading) return etcd_failed_leader(ticket, error, now);
  const bool is_asked_again = error.code() == ErrorCode::kUnavailable;
  if (ticket != ticket_) return {};
  if (has_its_leader()) {
    // It needs nothing from etcd, which may be sick: many nodes must not ask in haste.
    wait_as(Step::kFollowed, now);
    return {};
  }
  if (follows() && ticket == check_ticket_ && is_asked_again) {
    check_at_ = now + rules_.retry;
    return {};
  }
  if (!is_asked_again && !followed_) return give_up(error.code(), error.message());
  last_problem_ = error.message();
  return pause(rules_.retry, now);
}

LeadershipActions Leadership::pause(std::chrono::milliseconds length, Time now) {
  if (auto over = out_of_time(now)) return *over;
  step_ = Step::kPausing;
  look_at_ = std::min({now + length, search_ends_, is_contacted_ ? Time::max() : contact_ends_});
  return {};
}

// A leader that lives may be told in the same moment that its key was taken. So what changed is
// looked at and not guessed.
LeadershipActions Leadership::key_changed(Time now) {
  is_watched_ = false;
  if (step_ == Step::kLeading) return check();
  const bool looks_while_it_follows = step_ == Step::kFollowed && followed_;
  if (step_ == Step::kFollowing || step_ == Step::kProbing || step_ == Step::kPausing ||
      looks_while_it_follows)
    return read(now);
  return {};
}

LeadershipActions Leadership::watch_ended(Time now) {
  is_watched_ = false;
  if (step_ == Step::kLeading) return check();
  // A probe must not wait for a watch that may never hold.
  if (step_ == Step::kProbing) return {watch()};
  // A candidate that pauses, or that has its leader, looks anyway. Then it watches again.
  return step_ == Step::kFollowing ? read(now) : LeadershipActions{};
}

LeadershipActions Leadership::check() {
  check_at_ = Time::max();
  return {ReadKey{check_ticket_ = ++ticket_}};
}

// ---- a follower ----

LeadershipActions Leadership::followed(Time now) {
  if (!is_following_) return {};
  is_following_ = false;
  closed_at_.reset();
  ++ticket_;  // where the key is being read anew, the answer comes late
  wait_as(Step::kFollowed, now);
  if (!rules_.follows_only) {
    check_at_ = Time::max();
    is_watched_ = false;
    return {StopWatching{}};
  }
  followed_ = seen_;
  search_ends_ = Time::max();
  // If the key is being read anew, the watch has told already.
  if (is_watched_) return {};
  return {watch()};
}

// The key is as it was.
LeadershipActions Leadership::stay(Time now) {
  wait_as(Step::kFollowed, now);
  return {watch()};
}

// ---- the leader ----

// Others must not wait for the end of a lease that nobody will renew.
LeadershipActions Leadership::release(std::int64_t revision, Time now) {
  lease_ = 0;
  LeadershipActions actions = {ReleaseKey{revision}};
  append(actions, pause(rules_.retry, now));
  return actions;
}

LeadershipActions Leadership::lead(std::int64_t revision, Time now) {
  if (is_withdrawn_) return release(revision, now);
  // The answer took so long that the key may be another's by now.
  if (now >= lease_ends_) return read(now);
  is_contacted_ = true;
  step_ = Step::kLeading;
  seen_ = {.value = {}, .revision = revision, .lease = lease_};
  write_at_ = check_at_ = Time::max();
  record_ticket_ = check_ticket_ = 0;
  return {Lead{revision}, watch()};
}

LeadershipActions Leadership::checked_as_leader(const std::optional<KeyHolder>& holder, Time now) {
  if (!holder) return step_down("its key in etcd is gone", now);
  if (holder->revision != seen_.revision)
    return step_down("another node has taken its key in etcd", now);
  return {watch()};
}

LeadershipActions Leadership::lease_renewed(LeaseId lease, std::chrono::milliseconds length,
                                            Time asked_at, Time now) {
  if (step_ != Step::kLeading || lease != lease_) return {};
  if (length.count() <= 0) return step_down("its lease in etcd is over", now);
  // A moment that leads_at() has denied once stays denied: work was left undone by it.
  if (now >= lease_ends_) return time_passed(now);
  lease_ends_ = std::max(lease_ends_, asked_at + length - rules_.margin);
  return time_passed(now);
}

LeadershipActions Leadership::publish(Time /*now*/) {
  return step_ == Step::kLeading ? write_record() : LeadershipActions{};
}

LeadershipActions Leadership::write_record() {
  write_at_ = Time::max();
  record_ticket_ = ++ticket_;
  return {WriteRecord{record_ticket_, seen_.revision}};
}

LeadershipActions Leadership::record_written(Ticket ticket, bool done, Time now) {
  if (step_ != Step::kLeading || ticket != record_ticket_) return {};
  if (!done) return step_down("another node has taken its key in etcd", now);
  record_ticket_ = 0;
  // Its nodes must not start a round that the next leader, of this moment, knows nothing of.
  if (now >= lease_ends_) return time_passed(now);
  return {RecordWritten{}};
}

// A leader that was suspended may hear of its key before it looks at the clock.
LeadershipActions Leadership::step_down(std::string why, Time now) {
  const bool was_suspended = now >= lease_ends_ + kSuspended;
  step_ = Step::kIdle;
  past_lease_ = std::exchange(lease_, 0);
  is_watched_ = false;
  return {StopWatching{}, StepDown{std::move(why), was_suspended}};
}

// ---- time ----

LeadershipActions Leadership::time_passed(Time now) {
  if (step_ == Step::kPausing && now >= look_at_) return read(now);
  if (follows() && now >= check_at_) return check();
  if (step_ != Step::kLeading) return {};
  if (now >= lease_ends_) return step_down("etcd has not confirmed its lease in time", now);
  LeadershipActions actions;
  if (now >= renew_at_) {
    renew_at_ = now + rules_.renew_every;
    actions.push_back(RenewLease{lease_});
  }
  if (now >= write_at_) append(actions, write_record());
  if (now >= check_at_) append(actions, check());
  return actions;
}

Time Leadership::look_again_at() const {
  if (step_ == Step::kPausing) return look_at_;
  if (follows()) return check_at_;
  if (step_ == Step::kLeading) return std::min({lease_ends_, renew_at_, write_at_, check_at_});
  return Time::max();
}

std::optional<LeadershipActions> Leadership::out_of_time(Time now) {
  const std::string why = last_problem_.empty() ? "" : fmt::format(" ({})", last_problem_);
  if (!is_contacted_ && now >= contact_ends_)
    return give_up(ErrorCode::kTimedOut, fmt::format("nobody answered within read_timeout={} s{}",
                                                     in_seconds(rules_.contact_limit), why));
  if (now >= search_ends_)
    return give_up(ErrorCode::kTimedOut,
                   fmt::format("no leader was found within join_timeout={} s{}",
                               in_seconds(rules_.search_limit), why));
  return std::nullopt;
}

LeadershipActions Leadership::give_up(ErrorCode code, std::string what) {
  step_ = Step::kOver;
  return {StopWatching{},
          GiveUp{{code, fmt::format("rendezvous in etcd at {}: {}", rules_.etcd, what)}}};
}

}  // namespace ddprun::rendezvous
