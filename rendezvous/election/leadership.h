// Decides whether this agent leads the rendezvous of a job. It is one agent's view of a key in etcd
// that one agent can hold at a time. Its value is the leader's address. Its revision tells one
// holding from the next. It is there for as long as the holder renews a lease. Pure: an event and
// `now` go in, actions come out. It does not know etcd's messages nor connections: election.h does.
//
//   candidate --(the key is taken)--> leader --(lease in doubt, key of another)--> lost leadership
//      |   ^                                                                          |
//      v   +------------------------(leader_lost())-----------------------------------+
//   follower --(leader_lost())--> candidate
//
// A candidate reads the key. If nobody holds it, it takes it. Otherwise it probes the leader's
// address. A refused connection, where one was taken before, means that the process is dead. The
// key is taken over at once, by a transaction that compares its revision. So one of many wins. A
// firewall that is loaded anew refuses as well, and resets open connections. If it may be that, the
// refusal must last, and be looked at meanwhile. It closes nothing. So it is none if the leader's
// kernel has just closed a connection. That connection is the session's, or one on which nobody
// speaks (grpc/liveness.h). Silence may be the network's, and a leader whom we never reached may be
// behind a firewall that refuses. Then the lease decides, and the candidate watches the key and
// looks again.
//
// A leader may publish only by transactions that compare the key's revision. Beside that it steps
// down by its own clock. Its lease counts from when it sent the confirmed request, since etcd
// counts from later. So it has told its nodes before etcd gives the key to another.
//
// Owned by Election, used on its thread only.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "rendezvous/core/restart_budget.h"

namespace ddprun::rendezvous {

using LeaseId = std::int64_t;

// The leader key as etcd has it.
struct KeyHolder {
  std::string value;
  std::int64_t revision = 0;  // of the write; grows with each
  LeaseId lease = 0;

  bool operator==(const KeyHolder&) const = default;
};

// The view of the leader key in an answer: who holds it, and etcd's own revision of that moment. A
// watch begins after that: what etcd compacted away, the key's own revision too, cannot be watched
// any more.
struct KeyView {
  std::optional<KeyHolder> holder;
  std::int64_t revision = 0;
};

struct LeadershipRules {
  std::string etcd;  // the members, for messages
  // A leader steps down so long before the end of its lease. The nodes' workers die in that time.
  std::chrono::milliseconds margin{500};
  std::chrono::milliseconds renew_every{400};
  // The pause before etcd is asked again that did not answer.
  std::chrono::milliseconds retry{200};
  // The pause before a silent leader is looked at again.
  std::chrono::milliseconds look_again{500};
  // A refusal that may be a firewall's counts when it has lasted so long.
  std::chrono::milliseconds refused_for{2500};
  // Two refusals that are further apart are not one. A candidate that stood still has not seen how
  // the leader took connections meanwhile.
  std::chrono::milliseconds refused_within{2500};
  // A process that dies closes all of its connections in that time.
  std::chrono::milliseconds ends_within{1000};
  std::chrono::milliseconds contact_limit{60'000};  // until etcd has answered for the first time
  std::chrono::milliseconds search_limit{600'000};  // until a leader is found
  // It never takes the key. It looks who has it also while it follows: the leader that it has a
  // session with may stand still.
  bool follows_only = false;
  // The key is read so often while a session with the leader is being opened. With follows_only it
  // is so as long as the session is there. A watch may say nothing, as at a member of etcd that was
  // cut off. 0: never; not with follows_only. An etcd that is sick is left alone for so long by who
  // has a leader.
  std::chrono::milliseconds look_while_following{0};
  // After it has stepped down it takes its own key again at once, if nobody else did. Not where a
  // node of its own must end its workers first.
  bool retakes = false;
};

// ---- actions: what the caller must do ----

// An answer to an action with a ticket comes with the same one; one that came too late is ignored.
using Ticket = std::uint64_t;

// Read the key: key_read() or etcd_failed().
struct ReadKey {
  Ticket ticket = 0;
};
// Ask for a new lease: lease_granted() or etcd_failed().
struct GrantLease {
  Ticket ticket = 0;
};
// Write the key with this lease: key_taken() or etcd_failed(). Only if it has this revision; 0:
// only if nobody holds it.
struct TakeKey {
  Ticket ticket = 0;
  LeaseId lease = 0;
  std::int64_t if_revision = 0;
};
// Connect to the leader's address and hang up: probed() or probed_in_vain().
struct ProbeLeader {
  Ticket ticket = 0;
  std::string value;
};
// Open a session there, and say followed() when it let us in, leader_lost() when it ends. A session
// with the one before is over with it.
struct Follow {
  std::string value;
};
// Watch the key from this revision on: key_changed() or watch_ended(), once. An earlier watch ends.
struct WatchKey {
  std::int64_t from_revision = 0;
};
struct StopWatching {};
// This process leads: publish nothing but by transactions that compare this revision.
struct Lead {
  std::int64_t revision = 0;
};
// lease_renewed() or nothing.
struct RenewLease {
  LeaseId lease = 0;
};
// Write the record if the key has this revision: record_written() or etcd_failed().
struct WriteRecord {
  Ticket ticket = 0;
  std::int64_t if_revision = 0;
};
// The write that publish() asked for is done.
struct RecordWritten {};
// The key has this revision and is ours, and we do not want it: delete it.
struct ReleaseKey {
  std::int64_t revision = 0;
};
// This process leads no more. Say leader_lost() when its sessions are over.
struct StepDown {
  std::string why;
  // Its lease ended while this process did not run: nobody need have led since.
  bool was_suspended = false;
};
// There is no way to a leader. The last action.
struct GiveUp {
  Error error;
};
using LeadershipAction =
    std::variant<ReadKey, GrantLease, TakeKey, ProbeLeader, Follow, WatchKey, StopWatching, Lead,
                 RenewLease, WriteRecord, RecordWritten, ReleaseKey, StepDown, GiveUp>;
using LeadershipActions = std::vector<LeadershipAction>;

// Whether the leader's host says that nobody listens there. kPerhaps: something on the way may say
// so.
enum class LeaderRefusal { kNo, kPerhaps, kYes };

class Leadership {
 public:
  explicit Leadership(LeadershipRules rules);

  // Every function that returns actions: perform them in order, then set a timer for
  // look_again_at() and call time_passed() then.

  // Call it once.
  LeadershipActions start(Time now);
  // Without a holder nobody leads.
  LeadershipActions key_read(Ticket ticket, const KeyView& view, Time now);
  // `asked_at`: when the question was sent.
  LeadershipActions lease_granted(Ticket ticket, LeaseId lease, std::chrono::milliseconds length,
                                  Time asked_at, Time now);
  // `is_done`: it was written, with the revision of the view; otherwise the holder has the key.
  LeadershipActions key_taken(Ticket ticket, bool is_done, const KeyView& view, Time now);
  // etcd cannot be asked (kUnavailable: asked again), or said no (all other codes).
  LeadershipActions etcd_failed(Ticket ticket, const Error& error, Time now);
  LeadershipActions probed(Ticket ticket, Time now);
  // kNo: there was no answer.
  LeadershipActions probed_in_vain(Ticket ticket, LeaderRefusal refused, Time now);
  LeadershipActions key_changed(Time now);
  // Nobody watches the key any more; it may be as it was. Say it after a pause: the next may end,
  // too.
  LeadershipActions watch_ended(Time now);
  // The session let us in.
  LeadershipActions followed(Time now);
  // The session with the leader ended, or our own leadership: look for the next one.
  // `was_closed`: the leader's kernel closed it, which no firewall does.
  LeadershipActions leader_lost(Time now, bool was_closed = false);
  // The kernel of the leader with this value closed another connection of ours.
  LeadershipActions leader_closed(const std::string& value, Time now);
  // A length of 0: the lease is gone.
  LeadershipActions lease_renewed(LeaseId lease, std::chrono::milliseconds length, Time asked_at,
                                  Time now);
  // The leader wants the record written. A second call takes the place of one that is not done yet.
  LeadershipActions publish(Time now);
  // Returns whether the transaction found the key as it must be.
  LeadershipActions record_written(Ticket ticket, bool done, Time now);
  // Do not lead from now on, also if the key is about to be taken. Its holder may be followed.
  void withdraw() { is_withdrawn_ = true; }
  // The job is over here.
  void stop() { step_ = Step::kOver; }
  LeadershipActions time_passed(Time now);

  Time look_again_at() const;
  // While it looks for a leader.
  Time gives_up_at() const {
    return is_contacted_ ? search_ends_ : std::min(contact_ends_, search_ends_);
  }
  bool leads() const { return step_ == Step::kLeading; }
  // Returns whether it leads beyond doubt. A process that stood still may not know yet that it does
  // not. Once false, it steps down.
  bool leads_at(Time now) const { return leads() && now < lease_ends_; }
  // Valid while it leads: it steps down then, unless its lease is renewed.
  Time leads_until() const { return lease_ends_; }
  // Valid while it leads: the fencing token of each transaction.
  std::int64_t revision() const { return seen_.revision; }

 private:
  enum class Step {
    kIdle,     // not started, or it lost its leadership
    kReading,  // candidate: …
    kGranting,
    kTaking,
    kProbing,
    kPausing,    // etcd or the leader is silent; looks again in a moment
    kFollowing,  // a session is being opened
    kFollowed,   // follower
    kLeading,
    kOver,
  };

  LeadershipActions etcd_failed_leader(Ticket ticket, const Error& error, Time now);
  bool is_late(Ticket ticket, Step step) const { return ticket != ticket_ || step_ != step; }
  LeadershipActions read(Time now);
  WatchKey watch();
  LeadershipActions pause(std::chrono::milliseconds length, Time now);
  LeadershipActions grant(std::int64_t if_revision, Time now);
  LeadershipActions lead(std::int64_t revision, Time now);
  LeadershipActions release(std::int64_t revision, Time now);
  LeadershipActions follow_or_probe(const KeyHolder& holder, Time now);
  LeadershipActions stay(Time now);
  bool has_its_leader() const { return followed_ && *followed_ == seen_; }
  bool follows() const { return step_ == Step::kFollowing || step_ == Step::kFollowed; }
  void wait_as(Step step, Time now);
  LeadershipActions looked_while_following(const std::optional<KeyHolder>& holder, Time now);
  LeadershipActions await_another(Time now);
  LeadershipActions check();
  LeadershipActions checked_as_leader(const std::optional<KeyHolder>& holder, Time now);
  LeadershipActions write_record();
  LeadershipActions step_down(std::string why, Time now);
  LeadershipActions give_up(ErrorCode code, std::string what);
  std::optional<LeadershipActions> out_of_time(Time now);

  const LeadershipRules rules_;
  Step step_ = Step::kIdle;
  Ticket ticket_ = 0;
  KeyHolder seen_;                  // the leader that we look at; our own key while we lead
  std::int64_t etcd_revision_ = 0;  // when it told of the key last
  bool is_watched_ = false;
  KeyHolder reached_;                  // the last leader that took a connection of ours
  std::optional<Time> closed_at_;      // a connection to it, since it let us in
  std::optional<Time> refused_since_;  // perhaps, each probe of this one
  Time refused_at_{};                  // perhaps, the last probe
  std::int64_t if_revision_ = 0;       // of the key that we are about to take over
  std::string last_problem_;           // why etcd did not answer
  bool is_contacted_ = false;          // etcd has answered once
  Time contact_ends_ = Time::max();
  Time search_ends_ = Time::max();
  Time look_at_ = Time::max();  // while it pauses
  // ---- of our lease ----
  LeaseId lease_ = 0;       // 0: none since we lost the leadership
  LeaseId past_lease_ = 0;  // of the last key that we led with
  Time lease_ends_{};       // by our own clock, never later than etcd's
  Time renew_at_{};
  bool is_withdrawn_;
  bool is_following_ = false;  // a session is being opened, also while the key is read again
  std::optional<KeyHolder> followed_;  // who let us in, with follows_only
  // ---- as leader or follower ----
  Ticket check_ticket_ = 0;      // of a read of the key
  Time check_at_ = Time::max();  // read it again
  Ticket record_ticket_ = 0;     // 0: no record is being written
  Time write_at_ = Time::max();  // write the record again
};

}  // namespace ddprun::rendezvous
