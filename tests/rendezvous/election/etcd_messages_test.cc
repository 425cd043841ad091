// A job's transactions in etcd. Each is guarded by the leader key's revision, and its answer shows
// both keys.
#include "rendezvous/election/etcd_messages.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

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

}  // namespace
}  // namespace ddprun::rendezvous
