#include "rendezvous/election/etcd_messages.h"

#include <limits>

namespace ddprun::rendezvous {
namespace {

// A revision of 0 is etcd's word for a key that is not there.
void compare_revision(v3::TxnRequest& request, const std::string& key, std::int64_t revision) {
  v3::Compare& compare = *request.add_compare();
  compare.set_result(v3::Compare::EQUAL);
  compare.set_target(v3::Compare::MOD);
  compare.set_key(key);
  compare.set_mod_revision(revision);
}

void put(v3::RequestOp& operation, const std::string& key, const std::string& value,
         LeaseId lease) {
  v3::PutRequest& put = *operation.mutable_request_put();
  put.set_key(key);
  put.set_value(value);
  put.set_lease(lease);
}

void remove(v3::RequestOp& operation, const std::string& key) {
  operation.mutable_request_delete_range()->set_key(key);
}

// Both branches read both keys first: before what the transaction writes.
v3::TxnRequest with_reads(const JobKeys& keys) {
  v3::TxnRequest request;
  for (const std::string* key : {&keys.leader, &keys.record}) {
    request.add_success()->mutable_request_range()->set_key(*key);
    request.add_failure()->mutable_request_range()->set_key(*key);
  }
  return request;
}

// Returns whether a watch may begin after `revision`. Each watch begins at the revision after one
// that etcd told.
bool has_next(std::int64_t revision) { return revision < std::numeric_limits<std::int64_t>::max(); }

// A value that is too long makes no sense, and is cut so that it makes none.
KeyHolder holder_of(const v3::KeyValue& pair) {
  return {.value = pair.value().substr(0, kMaxValueBytes + 1),
          .revision = pair.mod_revision(),
          .lease = pair.lease()};
}

}  // namespace

v3::TxnRequest read_keys(const JobKeys& keys) { return with_reads(keys); }

v3::TxnRequest take_leader_key(const JobKeys& keys, std::int64_t if_revision,
                               const std::string& value, LeaseId lease) {
  v3::TxnRequest request = with_reads(keys);
  compare_revision(request, keys.leader, if_revision);
  put(*request.add_success(), keys.leader, value, lease);
  return request;
}

v3::TxnRequest give_up_leader_key(const JobKeys& keys, std::int64_t revision) {
  v3::TxnRequest request = with_reads(keys);
  compare_revision(request, keys.leader, revision);
  remove(*request.add_success(), keys.leader);
  return request;
}

v3::TxnRequest write_record(const JobKeys& keys, const RecordGuard& guard, const std::string& value,
                            LeaseId lease) {
  v3::TxnRequest request = with_reads(keys);
  compare_revision(request, keys.leader, guard.leader_revision);
  compare_revision(request, keys.record, guard.record_revision);
  put(*request.add_success(), keys.record, value, lease);
  return request;
}

v3::TxnRequest write_last_record(const JobKeys& keys, const RecordGuard& guard,
                                 const std::string& value, LeaseId lease) {
  v3::TxnRequest request = write_record(keys, guard, value, lease);
  remove(*request.add_success(), keys.leader);
  return request;
}

v3::TxnRequest remove_record(const JobKeys& keys, const RecordGuard& guard) {
  v3::TxnRequest request = with_reads(keys);
  compare_revision(request, keys.leader, guard.leader_revision);
  compare_revision(request, keys.record, guard.record_revision);
  remove(*request.add_success(), keys.record);
  return request;
}

namespace {

// Reads one pair of an answer. False if it makes no sense.
bool take_pair(const v3::KeyValue& pair, const JobKeys& keys, TransactionAnswer& answer) {
  const bool is_leader = pair.key() == keys.leader;
  if (is_leader && pair.value().size() > kMaxValueBytes) return false;
  if (!has_next(pair.mod_revision())) return false;
  const KeyHolder holder = holder_of(pair);
  if (is_leader) answer.leader = holder;
  if (pair.key() == keys.record) answer.record = holder;
  return true;
}

}  // namespace

Result<TransactionAnswer> decode_answer(const v3::TxnResponse& response, const JobKeys& keys) {
  const Error error(ErrorCode::kProtocol, "etcd's answer to a transaction makes no sense");
  TransactionAnswer answer{.is_done = response.succeeded(),
                           .revision = response.header().revision()};
  int reads = 0;
  for (const v3::ResponseOp& operation : response.responses()) {
    if (!operation.has_response_range()) continue;
    ++reads;
    for (const v3::KeyValue& pair : operation.response_range().kvs())
      if (!take_pair(pair, keys, answer)) return error;
  }
  if (reads != 2 || answer.revision <= 0 || !has_next(answer.revision)) return error;
  return answer;
}

v3::TxnRequest read_records(const GroupKeys& keys, std::int64_t leader_revision,
                            const std::string& after) {
  v3::TxnRequest request;
  compare_revision(request, keys.leader, leader_revision);
  v3::RangeRequest& range = *request.add_success()->mutable_request_range();
  // The least key that is greater has a zero byte more.
  range.set_key(after.empty() ? keys.records : keys.records + after + '\0');
  // All that begins with the prefix is less than the prefix whose last byte is one more.
  std::string end = keys.records;
  ++end.back();
  range.set_range_end(end);
  range.set_limit(kRecordsAtOnce);
  return request;
}

Result<FoundRecords> decode_records(const v3::TxnResponse& response, const GroupKeys& keys) {
  FoundRecords found{.is_done = response.succeeded()};
  if (!found.is_done) return found;
  const Error error(ErrorCode::kProtocol, "etcd's answer to a reading of records makes no sense");
  if (response.responses_size() != 1 || !response.responses(0).has_response_range()) return error;
  const v3::RangeResponse& range = response.responses(0).response_range();
  found.has_more = range.more();
  for (const v3::KeyValue& pair : range.kvs()) {
    const std::string& key = pair.key();
    if (!key.starts_with(keys.records)) return error;
    found.last = key.substr(keys.records.size());
    if (!found.last.empty()) found.records.push_back({found.last, holder_of(pair)});
  }
  if (found.has_more && found.last.empty()) return error;
  return found;
}

}  // namespace ddprun::rendezvous
