// The records of ranks that meet at a shared file, and the conclusion from them. Rank 0 serves a
// store and puts an InitRecord into the file; each rank leaves an Arrival in that store. Both come
// from any process that can write there. So text that is not exactly as we write it is refused.
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "worker/startup/init_method/own_address.h"

namespace ddprun::worker {

// Bytes; a longer file is not ours.
inline constexpr std::size_t kInitRecordBytes = 1024;

// The id of a start, and the place at which its store listens.
struct InitRecord {
  std::string id;  // 32 hex digits, of this start alone
  int ranks = 0;
  std::string job;      // what its starter calls the job, one word; empty: it has no name
  HostId host;          // of rank 0
  int process = 0;      // rank 0's
  std::string address;  // numeric; loopback where the host has no other
  std::uint16_t port = 0;

  bool operator==(const InitRecord&) const = default;
};

// Lines of a name and a value, in a fixed order. `record.job` may be any text: what of it is no
// word is replaced.
std::string format_record(InitRecord record);
std::optional<InitRecord> parse_record(std::string_view text);

// `process 17 on n1`.
std::string rank0_of(const InitRecord& record);

// The record of one process that comes as a rank.
struct Arrival {
  std::string id;  // 32 hex digits, of this process alone
  int process = 0;
  HostId host;

  bool operator==(const Arrival&) const = default;
};

std::string format_arrival(const Arrival& arrival);
std::optional<Arrival> parse_arrival(std::string_view text);

// The answer of the store that a record names.
enum class StoreAnswer {
  kItsStore,  // the store of this very start answers
  kNobody,    // nobody listens, the host cannot be reached, or the store of another start answers
  kSilence,   // something took the connection, or nothing refused it, and no answer came
};

// Returns the address at which a process on `here` probes: loopback on rank 0's own host, where it
// always listens.
std::string address_from(const InitRecord& record, const HostId& here);

// Whether the start of a record that rank 0 finds is going on.
enum class Earlier { kRuns, kOver, kUnknown };

// `lives`: the record's process is there, which is known on its own host alone.
Earlier judge_earlier(const InitRecord& record, const HostId& here, bool lives, StoreAnswer heard);

// Returns whether two names of jobs are those of two jobs. One that is empty says nothing.
bool are_two_jobs(std::string_view one, std::string_view other);

}  // namespace ddprun::worker
