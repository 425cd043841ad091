// A job while it runs, as told to operators: a snapshot of its Membership, and its last events.
// Plain values and pure functions; JobControl has the clock.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/core/membership.h"
#include "rendezvous/core/timeline.h"

namespace ddprun::rendezvous {

// So many incidents of a job are kept.
inline constexpr std::size_t kMaxIncidents = 16;

// Both travel as numbers: new ones come last.
enum class JobPhase { kWaiting, kRunning, kSucceeded, kFailed, kStopped };
enum class IncidentKind {
  kFailure,  // a worker failed or a node was lost
  kResize,   // nodes came or left; no restart was spent
  kEnd,      // the job ended
};

struct NodeSnapshot {
  SessionId session = 0;  // the host's own number; does not travel
  std::string id;
  std::string hostname;
  std::string role;
  int node_rank = -1;  // in the round that runs, or in the last one; -1: in none
  int workers = 0;
  MemberState state = MemberState::kSpare;
  bool hosts = false;  // the rendezvous is in its process
  double strikes = 0;  // rendezvous/core/strikes.h
  int sits_out_s = 0;  // it may have a seat again then

  bool operator==(const NodeSnapshot&) const = default;
};

struct IncidentStatus {
  std::int64_t unix_ms = 0;
  std::int64_t round = 0;  // that broke
  IncidentKind kind = IncidentKind::kFailure;
  std::string hostname;
  int rank = -1;  // of the worker to blame; -1: none is
  std::string text;
  std::int64_t reformed_after_ms = -1;  // until the next round was agreed; -1: not yet

  bool operator==(const IncidentStatus&) const = default;
};

// How far a rank of the node is that tells of it.
struct RankProgress {
  int rank = 0;                    // global
  std::int64_t steps = -1;         // of its optimizers; -1: it does not count them
  std::int64_t quiet_ms = -1;      // since the last one; -1: none is done
  std::int64_t memory_bytes = -1;  // resident, of its first process; -1: not known
  StepSpread spread{};             // of its last steps; all 0: not known

  bool operator==(const RankProgress&) const = default;
};

struct JobSnapshot {
  std::string job;
  JobPhase phase = JobPhase::kWaiting;
  std::int64_t round = 0;  // the last that was agreed; 0: none
  int restarts = 0;        // spent
  int max_restarts = 0;    // of the last round; a window may give some back
  int min_nodes = 1;
  int max_nodes = 1;
  std::string waits_for;            // why the next round has not started; empty while one runs
  std::string end;                  // how the job ended; empty: it has not
  std::vector<NodeSnapshot> nodes;  // by node rank; those without one come last
  std::vector<IncidentStatus> incidents;  // oldest first
  std::vector<Period> periods{};          // in the order of their beginnings
  // Only a node tells them, at its own socket: its ddprun's pid, the log folder, its own ranks.
  int pid = 0;
  std::string log_folder{};
  std::vector<RankProgress> ranks{};

  bool operator==(const JobSnapshot&) const = default;
};

// Its name for people and for JSON: "running", "waiting".
std::string_view name_of(JobPhase phase);
std::string_view name_of(IncidentKind kind);

// The last incidents, rounds and standstills of one job.
class JobEventLog {
 public:
  // Notes the membership's decision of `now`, which was `unix_ms` on the wall.
  void note(const Outcome& outcome, Time now, std::int64_t unix_ms);
  // Notes what the nodes were told of a standstill. Two verdicts after each other that say the same
  // begin one, since ranks may only be slow. Another verdict ends it.
  void note(const Verdict& verdict, std::int64_t unix_ms);
  const std::deque<IncidentStatus>& incidents() const { return incidents_; }
  const Timeline& timeline() const { return timeline_; }
  // The job was ended by an operator.
  bool was_stopped() const { return was_stopped_; }
  bool succeeded() const { return succeeded_; }

 private:
  void note_round(const Outcome& outcome, std::int64_t unix_ms);
  void add(IncidentStatus incident);

  std::deque<IncidentStatus> incidents_;
  Timeline timeline_;
  std::string alarm_;  // the last verdict, if it was one
  Time broken_at_{};
  bool is_open_ = false;  // the last incident broke a round, and the next one has not started
  bool was_stopped_ = false;
  bool succeeded_ = false;
};

// All of it but the job's id and which node hosts.
JobSnapshot status_of(const Membership& membership, const JobEventLog& log, Time now);

}  // namespace ddprun::rendezvous
