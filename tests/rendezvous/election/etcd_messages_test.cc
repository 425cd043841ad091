// A job's transactions in etcd. Each is guarded by the leader key's revision, and its answer shows
// both keys.
#include "rendezvous/election/etcd_messages.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>
#include <vector>

namespace ddprun::rendezvous {
namespace {

const JobKeys kKeys = job_keys("/p", "job");

void expect_guard(const v3::TxnRequest& request, const std::map<std::string, int>& revisions) {
  std::map<std::string, int> compared;
  for (const v3::Compare& one : request.compare()) {
    EXPECT_EQ(one.result(), v3::Compare::EQUAL);
    EXPECT_EQ(one.target(), v3::Compare::MOD);
    compared[one.key()] = static_cast<int>(one.mod_revision());
  }
  EXPECT_EQ(compared, revisions);
  EXPECT_EQ(request.failure_size(), 2) << "who loses writes nothing";
  for (const v3::RequestOp& operation : request.failure())
    EXPECT_TRUE(operation.has_request_range());
}

v3::TxnResponse answer_with(bool done) {
  v3::TxnResponse response;
  response.set_succeeded(done);
  response.mutable_header()->set_revision(12);
  v3::KeyValue& leader = *response.add_responses()->mutable_response_range()->add_kvs();
  leader.set_key(kKeys.leader);
  leader.set_value("a");
  leader.set_mod_revision(9);
  leader.set_lease(7);
  response.add_responses()->mutable_response_range();
  return response;
}

TEST(EtcdMessages, ReadBothKeysWithoutAnyCondition) {
  const v3::TxnRequest request = read_keys(kKeys);
  EXPECT_EQ(request.compare_size(), 0);
  ASSERT_EQ(request.success_size(), 2);
  EXPECT_EQ(request.success(0).request_range().key(), kKeys.leader);
  EXPECT_EQ(request.success(1).request_range().key(), kKeys.record);
}

TEST(EtcdMessages, TakeTheKeyByItsRevision) {
  const v3::TxnRequest request = take_leader_key(kKeys, 5, "me", 7);
  expect_guard(request, {{kKeys.leader, 5}});
  ASSERT_EQ(request.success_size(), 3);
  const v3::PutRequest& put = request.success(2).request_put();
  EXPECT_EQ(put.key(), kKeys.leader);
  EXPECT_EQ(put.value(), "me");
  EXPECT_EQ(put.lease(), 7);
}

// The record's own, too: an older write of the same leader may be done late.
TEST(EtcdMessages, WriteTheRecordByTheLeaderKeysRevision) {
  const v3::TxnRequest request = write_record(kKeys, {5, 4}, "rounds", 8);
  expect_guard(request, {{kKeys.leader, 5}, {kKeys.record, 4}});
  ASSERT_EQ(request.success_size(), 3);
  EXPECT_EQ(request.success(2).request_put().key(), kKeys.record);
  EXPECT_EQ(request.success(2).request_put().lease(), 8);
}

TEST(EtcdMessages, TheLastRecordGivesTheKeyUpInTheSameMoment) {
  const v3::TxnRequest request = write_last_record(kKeys, {5, 0}, "over", 8);
  expect_guard(request, {{kKeys.leader, 5}, {kKeys.record, 0}});
  ASSERT_EQ(request.success_size(), 4);
  EXPECT_EQ(request.success(2).request_put().key(), kKeys.record);
  EXPECT_EQ(request.success(3).request_delete_range().key(), kKeys.leader);
}

TEST(EtcdMessages, ReadAnAnswer) {
  const auto answer = decode_answer(answer_with(true), kKeys);
  ASSERT_TRUE(answer);
  EXPECT_TRUE(answer->is_done);
  EXPECT_EQ(answer->revision, 12);
  EXPECT_EQ(answer->leader, (KeyHolder{"a", 9, 7}));
  EXPECT_FALSE(answer->record);
  EXPECT_FALSE(decode_answer(answer_with(false), kKeys)->is_done);
}

TEST(EtcdMessages, RefuseAnAnswerToSomethingElse) {
  EXPECT_FALSE(decode_answer({}, kKeys));
  v3::TxnResponse response = answer_with(true);
  response.mutable_header()->clear_revision();
  EXPECT_FALSE(decode_answer(response, kKeys));
  response = answer_with(true);
  response.mutable_responses()->RemoveLast();
  EXPECT_FALSE(decode_answer(response, kKeys));
  response = answer_with(true);
  v3::KeyValue& leader = *response.mutable_responses(0)->mutable_response_range()->mutable_kvs(0);
  leader.set_value(std::string(kMaxValueBytes + 1, 'x'));
  EXPECT_FALSE(decode_answer(response, kKeys));
}

// A key is watched from the next revision on.
TEST(EtcdMessages, RefuseARevisionWithoutANextOne) {
  constexpr std::int64_t kLast = std::numeric_limits<std::int64_t>::max();
  v3::TxnResponse response = answer_with(true);
  response.mutable_header()->set_revision(kLast);
  EXPECT_FALSE(decode_answer(response, kKeys));
  response.mutable_header()->set_revision(kLast - 1);
  EXPECT_TRUE(decode_answer(response, kKeys));
  v3::KeyValue& leader = *response.mutable_responses(0)->mutable_response_range()->mutable_kvs(0);
  leader.set_mod_revision(kLast);
  EXPECT_FALSE(decode_answer(response, kKeys));
  leader.set_mod_revision(kLast - 1);
  EXPECT_TRUE(decode_answer(response, kKeys));
}

// ---- the records of many jobs ----

const GroupKeys kGroup = group_keys("/p", "g");

TEST(EtcdMessages, ARecordIsRemovedUnderBothGuards) {
  const v3::TxnRequest request = remove_record(kKeys, {9, 11});
  expect_guard(request, {{kKeys.leader, 9}, {kKeys.record, 11}});
  EXPECT_EQ(request.success(2).request_delete_range().key(), kKeys.record);
}

TEST(EtcdMessages, TheLeaderKeyIsGivenUpByItsHolderAlone) {
  const v3::TxnRequest request = give_up_leader_key(kKeys, 9);
  expect_guard(request, {{kKeys.leader, 9}});
  EXPECT_EQ(request.success(2).request_delete_range().key(), kKeys.leader);
}

TEST(EtcdMessages, KeysOfAGroupAreNoJobs) {
  EXPECT_EQ(kGroup.leader, "/p-daemons/g/leader");
  EXPECT_EQ(kGroup.of_job("j").record, "/p-daemons/g/jobs/j");
  EXPECT_EQ(kGroup.of_job("j").leader, kGroup.leader);
}

TEST(EtcdMessages, RecordsAreReadPageByPageUnderTheLeadersGuard) {
  const v3::TxnRequest first = read_records(kGroup, 9, "");
  ASSERT_EQ(first.compare_size(), 1);
  EXPECT_EQ(first.compare(0).key(), kGroup.leader);
  EXPECT_EQ(first.compare(0).mod_revision(), 9);
  EXPECT_EQ(first.success(0).request_range().key(), "/p-daemons/g/jobs/");
  EXPECT_EQ(first.success(0).request_range().range_end(), "/p-daemons/g/jobs0");
  EXPECT_EQ(first.success(0).request_range().limit(), kRecordsAtOnce);
  EXPECT_EQ(read_records(kGroup, 9, "j").success(0).request_range().key(),
            std::string("/p-daemons/g/jobs/j\0", 20));
}

v3::TxnResponse page_of(const std::string& key, const std::string& value) {
  v3::TxnResponse response;
  response.set_succeeded(true);
  v3::RangeResponse& range = *response.add_responses()->mutable_response_range();
  range.set_more(true);
  v3::KeyValue& pair = *range.add_kvs();
  pair.set_key(key);
  pair.set_value(value);
  pair.set_mod_revision(12);
  return response;
}

TEST(EtcdMessages, APageOfRecordsIsDecoded) {
  const auto page = decode_records(page_of("/p-daemons/g/jobs/a/b", "v"), kGroup);
  ASSERT_TRUE(page);
  EXPECT_TRUE(page->is_done && page->has_more);
  EXPECT_EQ(page->records, (std::vector<FoundRecord>{{"a/b", {"v", 12, 0}}}));
  EXPECT_FALSE(decode_records({}, kGroup)->is_done) << "another leads";
}

void add(v3::TxnResponse& page, const std::string& key, const std::string& value) {
  v3::KeyValue& pair = *page.mutable_responses(0)->mutable_response_range()->add_kvs();
  pair.set_key(key);
  pair.set_value(value);
  pair.set_mod_revision(13);
}

// Else one of them would keep the next leader from all jobs.
TEST(EtcdMessages, ARecordThatMakesNoSenseSpoilsNoOther) {
  v3::TxnResponse response = page_of("/p-daemons/g/jobs/", "v");
  add(response, "/p-daemons/g/jobs/a", std::string(5000, 'v'));
  add(response, "/p-daemons/g/jobs/b", "v");
  const auto page = decode_records(response, kGroup);
  ASSERT_TRUE(page);
  ASSERT_EQ(page->records.size(), 2u) << "a key that names no job is left out";
  EXPECT_EQ(page->records[0].rdzv_id, "a");
  EXPECT_EQ(page->records[0].record.revision, 13);
  EXPECT_FALSE(decode_record(page->records[0].record.value));
  EXPECT_EQ(page->records[1], (FoundRecord{"b", {"v", 13, 0}}));
  EXPECT_EQ(page->last, "b");
}

// A leader writes on top of it.
TEST(EtcdMessages, AnAnswerMayShowARecordThatIsTooLong) {
  v3::TxnResponse response = answer_with(false);
  v3::KeyValue& record = *response.mutable_responses(1)->mutable_response_range()->add_kvs();
  record.set_key(kKeys.record);
  record.set_value(encode(RecordedJob{}) + std::string(kMaxValueBytes, 'x'));
  record.set_mod_revision(11);
  const auto answer = decode_answer(response, kKeys);
  ASSERT_TRUE(answer && answer->record);
  EXPECT_EQ(answer->record->revision, 11);
  EXPECT_FALSE(decode_record(answer->record->value));
}

TEST(EtcdMessages, APageThatMakesNoSenseIsAnError) {
  EXPECT_FALSE(decode_records(page_of("/p-daemons/g/jobs/", "v"), kGroup))
      << "it would be read for ever";
  EXPECT_FALSE(decode_records(page_of("/other", "v"), kGroup));
  v3::TxnResponse empty;
  empty.set_succeeded(true);
  EXPECT_FALSE(decode_records(empty, kGroup));
  empty.add_responses()->mutable_response_range()->set_more(true);
  EXPECT_FALSE(decode_records(empty, kGroup)) << "it would be read for ever";
}

}  // namespace
}  // namespace ddprun::rendezvous
