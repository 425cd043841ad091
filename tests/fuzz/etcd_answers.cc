// The answers of etcd: transactions, the leader key and the job's record. Anybody with access to
// etcd may have written them. Understood values are within their bounds, and are the same when they
// are written and read again. An understood answer is also given to a candidate for the leadership.

#include <limits>
#include <string>

#include "base/assert.h"
#include "rendezvous/election/etcd_messages.h"
#include "rendezvous/election/job_keys.h"
#include "rendezvous/election/leadership.h"
#include "tests/fuzz/script_input.h"

namespace ddprun::rendezvous {
namespace {

using fuzz::ScriptInput;
using std::chrono::milliseconds;

void read_leader(std::string_view value) {
  const auto leader = decode_leader(value);
  if (!leader) return;
  DDPRUN_ASSERT(value.size() <= kMaxValueBytes);
  DDPRUN_ASSERT(leader->port != 0 && !leader->address.empty());
  DDPRUN_ASSERT(leader->address.find(' ') == std::string::npos);
  const auto again = decode_leader(encode(*leader));
  DDPRUN_ASSERT(again.has_value() && *again == *leader);
}

void read_record(std::string_view value) {
  const auto job = decode_record(value);
  if (!job) return;
  DDPRUN_ASSERT(value.size() <= kMaxValueBytes);
  const JobRecord& record = job->record;
  // The next round and the next restart have a number, too.
  DDPRUN_ASSERT(record.round >= 0 && record.round < std::numeric_limits<std::int64_t>::max());
  DDPRUN_ASSERT(record.restarts >= 0 && record.restarts < std::numeric_limits<int>::max());
  DDPRUN_ASSERT(record.others >= 0 && record.others <= kMaxNodes);
  // In nanoseconds these must fit into a clock's number.
  for (const auto time : {record.rules.window, record.rules.backoff, record.rules.backoff_max})
    DDPRUN_ASSERT(time.count() >= 0 && time <= std::chrono::hours(24 * 365 * 100));
  const auto again = decode_record(encode(*job));
  DDPRUN_ASSERT(again.has_value() && *again == *job);
}

// As a candidate sees it: each of its questions gets this answer.
void lead(const TransactionAnswer& answer) {
  Leadership candidate({.etcd = "etcd"});
  Time now{};
  LeadershipActions actions = candidate.start(now);
  for (int turn = 0; turn < 20 && !actions.empty(); ++turn) {
    now += milliseconds(10);
    LeadershipActions next;
    for (const LeadershipAction& action : actions) {
      if (const auto* read = std::get_if<ReadKey>(&action))
        next = candidate.key_read(read->ticket, {answer.leader, answer.revision}, now);
      if (const auto* grant = std::get_if<GrantLease>(&action))
        next = candidate.lease_granted(grant->ticket, 7, milliseconds(3000), now, now);
      if (const auto* take = std::get_if<TakeKey>(&action))
        next = candidate.key_taken(take->ticket, answer.is_done, {answer.leader, answer.revision},
                                   now);
      if (const auto* probe = std::get_if<ProbeLeader>(&action)) {
        DDPRUN_ASSERT(probe->value.size() <= kMaxValueBytes);
        next = candidate.probed_in_vain(probe->ticket, LeaderRefusal::kYes, now);
      }
    }
    if (next.empty() && candidate.look_again_at() < Time::max()) {
      now = std::max(now, candidate.look_again_at());
      next = candidate.time_passed(now);
    }
    actions = std::move(next);
  }
}

void read_answer(std::string_view bytes) {
  v3::TxnResponse response;
  if (!response.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  const auto answer = decode_answer(response, job_keys("/d", "j"));
  if (!answer) return;
  DDPRUN_ASSERT(answer->revision > 0);
  for (const auto& holder : {answer->leader, answer->record}) {
    if (!holder) continue;
    DDPRUN_ASSERT(holder->value.size() <= kMaxValueBytes + 1);
    read_leader(holder->value);
    read_record(holder->value);
  }
  lead(*answer);
}

// The records of a group of daemons.
void read_records_of_a_group(std::string_view bytes) {
  v3::TxnResponse response;
  if (!response.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  const auto found = decode_records(response, group_keys("/d", "g"));
  if (!found) return;
  DDPRUN_ASSERT(found->is_done || found->records.empty());
  DDPRUN_ASSERT(!found->has_more || !found->last.empty());
  for (const FoundRecord& one : found->records) {
    DDPRUN_ASSERT(!one.rdzv_id.empty() && one.record.value.size() <= kMaxValueBytes + 1);
    read_record(one.record.value);
  }
}

// An answer as etcd builds it, from the fuzzer's choices.
void build_answer(ScriptInput script) {
  const JobKeys keys = job_keys("/d", "j");
  v3::TxnResponse response;
  response.mutable_header()->set_revision(script.number());
  response.set_succeeded(script.flag());
  for (std::size_t reads = script.choice(4); reads > 0; --reads) {
    v3::ResponseOp& operation = *response.add_responses();
    if (script.choice(8) == 7) {
      operation.mutable_response_put();
      continue;
    }
    for (std::size_t pairs = script.choice(3); pairs > 0; --pairs) {
      v3::KeyValue& pair = *operation.mutable_response_range()->add_kvs();
      pair.set_key(script.flag() ? keys.leader : keys.record);
      pair.set_mod_revision(script.flag() ? script.number() : script.byte());
      pair.set_lease(script.number());
      std::string value = script.text();
      for (std::size_t doubled = script.choice(4); doubled > 0; --doubled) value += value;
      pair.set_value(value);
    }
    operation.mutable_response_range();
  }
  read_answer(response.SerializeAsString());
}

void write_values(ScriptInput script) {
  RecordedJob job;
  job.state = static_cast<RecordedJob::State>(script.choice(3));
  job.record.round = script.number() & (std::numeric_limits<std::int64_t>::max() - 1);
  job.record.restarts = script.byte();
  job.record.others = script.byte();
  job.record.rules.max_restarts = static_cast<int>(script.number() & 0x7fffffff);
  job.record.rules.window = milliseconds(script.number() & 0x7fffffff);
  job.record.rules.backoff = milliseconds(script.number() & 0x7fffffff);
  job.record.rules.backoff_max = milliseconds(script.number() & 0x7fffffff);
  job.record.leader = script.text();
  job.node_unit = script.byte() % 4;
  job.min_nodes = job.node_unit * (1 + script.byte());
  job.max_nodes = job.min_nodes + job.node_unit * script.byte();
  job.served = script.byte();
  const auto read_job = decode_record(encode(job));
  DDPRUN_ASSERT(read_job.has_value() && *read_job == job);
  const Leader leader{.address = "::1",
                      .port = static_cast<std::uint16_t>(1 + script.byte()),
                      .hostname = script.text()};
  const auto read = decode_leader(encode(leader));
  DDPRUN_ASSERT(read.has_value() && *read == leader);
}

}  // namespace
}  // namespace ddprun::rendezvous

// The first byte says what the rest is.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddprun::rendezvous;
  ddprun::fuzz::ScriptInput script(data, size);
  switch (script.choice(6)) {
    case 0:
      read_answer(script.all());
      break;
    case 1:
      build_answer(script);
      break;
    case 2:
      read_leader(script.all());
      break;
    case 3:
      read_record(script.all());
      break;
    case 4:
      write_values(script);
      break;
    case 5:
      read_records_of_a_group(script.all());
      break;
  }
  return 0;
}
