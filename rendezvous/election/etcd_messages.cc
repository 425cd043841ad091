#include "rendezvous/election/etcd_messages.h"

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

// Both branches read both keys first: before what the transaction writes.
v3::TxnRequest with_reads(const JobKeys& keys) {
  v3::TxnRequest request;
  for (const std::string* key : {&keys.leader, &keys.record}) {
    request.add_success()->mutable_request_range()->set_key(*key);
    request.add_failure()->mutable_request_range()->set_key(*key);
  }
  return request;
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
  request.add_success()->mutable_request_delete_range()->set_key(keys.leader);
  return request;
}

Result<TransactionAnswer> decode_answer(const v3::TxnResponse& response, const JobKeys& keys) {
  const Error error(ErrorCode::kProtocol, "etcd's answer to a transaction makes no sense");
  TransactionAnswer answer{.is_done = response.succeeded(),
                           .revision = response.header().revision()};
  int reads = 0;
  for (const v3::ResponseOp& operation : response.responses()) {
    if (!operation.has_response_range()) continue;
    ++reads;
    for (const v3::KeyValue& pair : operation.response_range().kvs()) {
      if (pair.value().size() > kMaxValueBytes) return error;
      const KeyHolder holder{
          .value = pair.value(), .revision = pair.mod_revision(), .lease = pair.lease()};
      if (pair.key() == keys.leader) answer.leader = holder;
      if (pair.key() == keys.record) answer.record = holder;
    }
  }
  if (reads != 2 || answer.revision <= 0) return error;
  return answer;
}

}  // namespace ddprun::rendezvous
