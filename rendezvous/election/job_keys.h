// What a job keeps in etcd: two keys, and what their values say. The values are text, so that
// `etcdctl get --prefix /ddprun/` shows them. Another ddprun wrote what is decoded here, or anybody:
// lengths and numbers are checked. Pure. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "proto/result.h"
#include "rendezvous/membership.h"

namespace ddprun::rendezvous {

// A value that is longer makes no sense.
inline constexpr std::size_t kMaxValueBytes = 1024;

struct JobKeys {
  std::string leader;  // who leads; bound to the leader's lease
  std::string record;  // what outlives it; bound to a lease that is some times as long
};
JobKeys job_keys(std::string_view prefix, std::string_view rdzv_id);

// Where the leader's rendezvous is.
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

  bool operator==(const RecordedJob&) const = default;
};
std::string encode(const RecordedJob& job);
Result<RecordedJob> decode_record(std::string_view value);

}  // namespace ddprun::rendezvous
