// The transactions of a job in etcd, as etcd's messages, and its answers as plain values. Each
// transaction answers with both keys, so that a loser knows the winner. Pure. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "proto/etcd.pb.h"
#include "rendezvous/election/job_keys.h"
#include "rendezvous/election/leadership.h"

namespace ddprun::rendezvous {

namespace v3 = ::etcdserverpb;

// Both keys, read in one moment.
v3::TxnRequest read_keys(const JobKeys& keys);
// Writes the leader key if its revision is `if_revision`; 0: if it is not there.
v3::TxnRequest take_leader_key(const JobKeys& keys, std::int64_t if_revision,
                               const std::string& value, LeaseId lease);
// Deletes the leader key if its revision is this one.
v3::TxnRequest give_up_leader_key(const JobKeys& keys, std::int64_t revision);
// The conditions of a write of the record: both keys as the leader knows them. A record of another
// revision may be a newer one. A write that we asked for earlier and had no answer to may be done
// late.
struct RecordGuard {
  std::int64_t leader_revision = 0;
  std::int64_t record_revision = 0;  // 0: it is not there
};
v3::TxnRequest write_record(const JobKeys& keys, const RecordGuard& guard, const std::string& value,
                            LeaseId lease);
// The same for a job that is over: nobody leads it any more.
v3::TxnRequest write_last_record(const JobKeys& keys, const RecordGuard& guard,
                                 const std::string& value, LeaseId lease);

// Deletes the record of a job that is forgotten.
v3::TxnRequest remove_record(const JobKeys& keys, const RecordGuard& guard);

struct TransactionAnswer {
  bool is_done = false;       // the keys were as they had to be
  std::int64_t revision = 0;  // of what was written; of etcd as a whole, if nothing was
  std::optional<KeyHolder> leader;
  std::optional<KeyHolder> record;  // as it was before this transaction, as `leader`

  bool operator==(const TransactionAnswer&) const = default;
};
// Decodes the answer to any of the above. Error kProtocol: that is no answer to them.
Result<TransactionAnswer> decode_answer(const v3::TxnResponse& response, const JobKeys& keys);

// ---- the records of many jobs ----

// A record in the answer to read_records(): what its key has after the prefix, and the value.
struct FoundRecord {
  std::string rdzv_id;
  KeyHolder record;

  bool operator==(const FoundRecord&) const = default;
};
struct FoundRecords {
  bool is_done = false;  // the leader key has the revision; else nothing was read
  // A value that makes no sense is among them; a key that names no job is not.
  std::vector<FoundRecord> records;
  bool has_more = false;
  std::string last{};  // what to go on after
};
inline constexpr int kRecordsAtOnce = 500;
// Reads kRecordsAtOnce records after `after` (an rdzv_id; empty: from the first on), if the leader
// key has this revision.
v3::TxnRequest read_records(const GroupKeys& keys, std::int64_t leader_revision,
                            const std::string& after);
// Error kProtocol: that is no answer to it.
Result<FoundRecords> decode_records(const v3::TxnResponse& response, const GroupKeys& keys);

}  // namespace ddprun::rendezvous
