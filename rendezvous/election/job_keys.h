// The keys of a job in etcd, two of them, and the meaning of their values. The values are text, so
// that `etcdctl get --prefix /ddprun/` shows them. Another ddprun wrote what is decoded here, or
// anybody: lengths and numbers are checked. Pure. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "rendezvous/core/membership.h"

namespace ddprun::rendezvous {

// A value that is longer makes no sense.
inline constexpr std::size_t kMaxValueBytes = 1024;

struct JobKeys {
  std::string leader;  // who leads; bound to the leader's lease
  std::string record;  // what outlives it; bound to a lease that is some times as long
};
JobKeys job_keys(std::string_view prefix, std::string_view rdzv_id);

// The keys of a group of daemons: who leads all of its jobs, and a record for each job.
struct GroupKeys {
  std::string leader;   // as in JobKeys
  std::string records;  // the prefix of the records' keys; the rdzv id follows it

  JobKeys of_job(const std::string& rdzv_id) const { return {leader, records + rdzv_id}; }
};
// Keys for the election of a group: a prefix that no job's keys have, whatever its id.
std::string group_prefix(std::string_view prefix);
GroupKeys group_keys(std::string_view prefix, std::string_view group);

// The address of the leader's rendezvous.
struct Leader {
  std::string address;  // numeric
  std::uint16_t port = 0;
  std::string hostname;  // for people

  bool operator==(const Leader&) const = default;
};
std::string encode(const Leader& leader);
Result<Leader> decode_leader(std::string_view value);

// The record, and whether the job it tells of is over.
struct RecordedJob {
  enum class State { kRuns, kSucceeded, kFailed };
  State state = State::kRuns;
  JobRecord record;
  // ---- of daemons, which know no job before its nodes come ----
  // The nodes' own settings: any of them may be the first at the next leader. 0: not told.
  int min_nodes = 0;
  int max_nodes = 0;
  int node_unit = 0;
  int served = 0;  // nodes of all jobs that its leader had then: their leases were made for so many

  bool operator==(const RecordedJob&) const = default;
};
std::string encode(const RecordedJob& job);
Result<RecordedJob> decode_record(std::string_view value);

}  // namespace ddprun::rendezvous
