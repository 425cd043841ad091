// The jobs that a ddprund has. It decides whether a node may make or join one, and when one is
// given up. Pure: `now` and what the process uses come in. It knows a job by a number, since an id
// is used again after its job's end. Owned by Daemon, used on its thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/core/rendezvous.h"
#include "rendezvous/core/restart_budget.h"

namespace ddprun::daemon {

using rendezvous::Time;
using JobNumber = std::uint64_t;

struct JobLimits {
  int jobs = 1000;  // that have not ended
  int nodes_per_job = rendezvous::kMaxNodes;
  int nodes = rendezvous::kMaxMembers;  // of all jobs; whoever serves them holds it (Service)
  std::uint64_t memory_bytes = 0;       // of the process; above it no job is made; 0: no limit
  std::chrono::milliseconds forget_after{3'600'000};  // an ended job
  int ended_jobs = 1000;                              // that are kept at most
  // A job that no node has a session with any more is given up after this.
  std::chrono::milliseconds alone{60'000};

  bool operator==(const JobLimits&) const = default;
};

class JobTable {
 public:
  explicit JobTable(const JobLimits& limits) : limits_(limits) {}

  struct Admission {
    JobNumber job = 0;
    bool is_new = false;
  };
  // A node of this id asks for its first seat; it is in the job from now on. An id whose job has
  // ended makes a new one. `members`: nodes that the job has now. Errors name the limit: kLimit, or
  // kInvalidArgument where no job can be as the node says.
  // A node that `comes_back` to a job that was inherited is refused by no limit: its workers run.
  Result<Admission> admit(const std::string& id, const rendezvous::NodeSpec& spec,
                          std::uint64_t memory_bytes, bool comes_back = false);
  // A job of the leader before runs, and its nodes come back. It has its place among those that
  // have not ended. No limit applies when the first of them makes it here.
  void inherit(const std::string& id) { awaited_.insert(id); }
  // Those that no node came back to are here no more.
  void forget_inherited() { awaited_.clear(); }
  // A node of the job is here again, after its end or before.
  void came_back(JobNumber job) { jobs_.at(job).alone_since.reset(); }
  // Nodes of a job that is here.
  void set_members(JobNumber job, int members) { jobs_.at(job).members = members; }
  void ended(JobNumber job, Time now);
  // No node has a session with the job any more.
  void left_alone(JobNumber job, Time now);

  // The jobs whose time has come. Those that are given up must be ended now; those that are
  // forgotten are here no more.
  struct Due {
    std::vector<JobNumber> give_up;
    std::vector<JobNumber> forget;
  };
  Due due(Time now);
  Time look_again_at() const;

  // The job of this id that came last; nothing if none is here.
  std::optional<JobNumber> find(const std::string& id) const;
  // The last one of each id, in the order of their coming.
  std::vector<JobNumber> shown() const;
  // Moves all that it keeps to new memory, close together.
  void compact();
  // All jobs are gone, without an end.
  void clear();
  std::size_t size() const { return jobs_.size(); }

 private:
  struct Entry {
    std::string id;
    int members = 0;
    bool is_inherited = false;
    std::optional<Time> ended_at;
    std::optional<Time> alone_since;
  };

  std::optional<Error> validate(const std::string& id, const rendezvous::NodeSpec& spec,
                                bool is_limited) const;
  int live() const { return static_cast<int>(jobs_.size() + awaited_.size()) - ended_; }
  std::optional<Error> too_much(std::uint64_t memory_bytes) const;
  bool is_replaced(JobNumber job, const Entry& entry) const;

  const JobLimits limits_;
  std::map<JobNumber, Entry> jobs_;
  std::map<std::string, JobNumber> by_id_;
  std::set<std::string> awaited_;  // inherited, and not in jobs_ yet
  JobNumber last_ = 0;
  int ended_ = 0;
};

}  // namespace ddprun::daemon
