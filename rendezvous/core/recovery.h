// The inheritance of a leader from the one before. It is the round that was published last, and its
// nodes that are back. Pure: no I/O and no clock. It decides nothing about the round: membership.h
// does.
//
// A node that comes back says which round and which seat it is in. A seat is taken once. A node of
// an older round, or one that counts other nodes than the record, takes none. A node that is not
// back has a lease of the leader before, and ends its workers with it. They may run until
// worker_limit.
//
// Owned by Membership, used on its thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "rendezvous/core/rendezvous.h"
#include "rendezvous/core/restart_budget.h"
#include "rendezvous/core/seating.h"

namespace ddprun::rendezvous {

// The facts that outlive the process of the host, if another one may lead on. etcd keeps them
// (rendezvous/election). It is written before the nodes of a round are told of it.
struct JobRecord {
  std::int64_t round = 0;  // the last that was published; 0: none was
  int restarts = 0;        // spent so far
  RestartRules rules;      // of that round
  int others = 0;          // its nodes without that of the leader
  // The process that led had a node in that round. It cannot come back: the round broke with it.
  bool leader_has_seat = false;
  std::string leader;  // host name, for people
  // It is not recorded; a node of that round remembers it. Perhaps the others have gone on, and the
  // job has ended. So its round goes on as a whole, or this is the end.
  bool is_remembered = false;

  int node_count() const { return others + (leader_has_seat ? 1 : 0); }
  bool operator==(const JobRecord&) const = default;
};

// Returns the record that a node of a round remembers, whoever led.
JobRecord remembered(const ResumeRequest& node);

// How long the nodes of the inherited round are waited for, from the first event on.
struct RecoveryLimits {
  // Until the lease of the last of them has ended, and its workers with it.
  std::chrono::nanoseconds workers{0};
  // Until a round starts without them, if there is room for them.
  std::chrono::nanoseconds nodes{0};
};

class Recovery {
 public:
  // A record without a round: nothing is inherited, and all functions say so.
  explicit Recovery(JobRecord record) : record_(std::move(record)), is_open_(record_.round > 0) {}

  // From the start until close().
  bool is_open() const { return is_open_; }
  const JobRecord& record() const { return record_; }
  // No other round may follow, as long as this one is not whole.
  bool only_resumes() const { return is_open_ && record_.is_remembered; }
  // The first event: the limits count from now. True once.
  bool begin(const RecoveryLimits& limits, Time now);
  // The first round of this leader starts.
  void close();

  // A session begins. It may be one of the nodes; until it says what it is, no round may start.
  void opened(SessionId session) {
    if (is_open_) unknown_.insert(session);
  }
  // It said so, or it is lost. True if it was not known until now.
  bool known(SessionId session) { return unknown_.erase(session) > 0; }
  int unknown() const { return static_cast<int>(unknown_.size()); }

  // A node of `round` with `seat` of `node_count` is back. True if it is believed, and has the
  // seat.
  bool take(std::int64_t round, int seat, int node_count);
  bool any_back() const { return !taken_.empty(); }
  bool all_back() const { return back() == record_.node_count(); }
  // Nodes that are not back.
  int missing() const { return is_open_ && back() < record_.others ? record_.others - back() : 0; }
  // Until when workers of those may run, and until when they are waited for. Time::max() before
  // begin().
  Time workers_until() const { return workers_until_; }
  Time nodes_until() const { return nodes_until_; }

 private:
  int back() const { return static_cast<int>(taken_.size()); }

  JobRecord record_;
  bool is_open_ = false;
  bool has_begun_ = false;
  std::set<SessionId> unknown_;
  std::set<int> taken_;  // seats
  Time workers_until_ = Time::max();
  Time nodes_until_ = Time::max();
};

}  // namespace ddprun::rendezvous
