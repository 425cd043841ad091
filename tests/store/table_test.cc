// The effect of each request on the map and the queues. Expected values: PyTorch's libuv server,
// torch 2.11 and 2.15.
#include "store/table.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "tests/store/table_driver.h"

namespace ddprun::store {
namespace {

using Woken = std::vector<ConnectionId>;

TEST(Table, CountsAddsAndKeepsThemAsDecimalText) {
  TableDriver store;
  EXPECT_EQ(store.add("key", 1), 1);
  EXPECT_EQ(store.add("key", 2), 3);
  EXPECT_EQ(store.add("key", 3), 6);
  for (const char* key : {"key0", "key1", "key2"}) store.set(key, "v");
  for (int i = 1; i <= 6; ++i) store.add("key3", i);
  EXPECT_EQ(store.num_keys(), 5);
  EXPECT_EQ(store.get("key"), "6");
  EXPECT_EQ(store.get("key3"), "21");
}

TEST(Table, AddReadsNumbersAsStrtollDoes) {
  TableDriver store;
  for (const auto& [held, sum] :
       std::vector<std::pair<std::string, std::int64_t>>{{"12abc", 13},
                                                         {"1e3", 2},
                                                         {"  7", 8},
                                                         {"\t\n+41", 42},
                                                         {"-5", -4},
                                                         {std::string("3\0009", 3), 4},
                                                         {"007", 8}}) {
    store.set("n", held);
    EXPECT_EQ(store.add("n", 1), sum) << held;
    EXPECT_EQ(store.get("n"), std::to_string(sum));
  }
}

TEST(Table, AddToWhatIsNoNumberIsAnErrorAndChangesNothing) {
  TableDriver store;
  for (const char* held :
       {"", "abc", " ", "+", "-", "+-5", "- 5", "9223372036854775808", "-9223372036854775809"}) {
    store.set("n", held);
    EXPECT_EQ(store.ask(Op::kAdd, {"n"}, 1), "error") << held;
    EXPECT_EQ(store.error.code(), ErrorCode::kProtocol);
    EXPECT_EQ(store.get("n"), held);
  }
}

TEST(Table, AddWrapsAround) {
  TableDriver store;
  store.set("n", "9223372036854775807");
  EXPECT_EQ(store.add("n", 1), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(store.get("n"), "-9223372036854775808");
  EXPECT_EQ(store.add("n", -1), std::numeric_limits<std::int64_t>::max());
}

TEST(Table, AddOfZeroCreatesTheKey) {
  TableDriver store;
  EXPECT_EQ(store.add("n", 0), 0);
  EXPECT_EQ(store.num_keys(), 1);
  EXPECT_EQ(store.get("n"), "0");
}

TEST(Table, CheckIsTrueWhereAllAreThere) {
  TableDriver store;
  store.set("a", "");  // an empty value is there
  store.ask(Op::kQueuePush, {"q", "x"});
  EXPECT_EQ(store.ask(Op::kCheck, {"a"}), kReady);
  EXPECT_EQ(store.ask(Op::kCheck, {"a", "q"}), kReady);
  EXPECT_EQ(store.ask(Op::kCheck, {"a", "b"}), kNotReady);
  EXPECT_EQ(store.ask(Op::kCheck, {}), kReady);
}

TEST(Table, DeleteTellsWhetherTheKeyWasThere) {
  TableDriver store;
  store.set("-key3", "7");
  EXPECT_EQ(store.get("-key3"), "7");
  EXPECT_EQ(store.number(Op::kDelete, {"-key3"}), 1);
  EXPECT_EQ(store.number(Op::kDelete, {"-key3"}), 0);
  EXPECT_EQ(store.num_keys(), 0);
  EXPECT_EQ(store.table.stored_bytes(), 0U);
}

TEST(Table, KeyCountFollowsAddsSetsAndDeletes) {
  TableDriver store;
  for (const char* key : {"a", "b", "c"}) store.add(key, 1);
  store.set("d", "");
  store.add("e", 1);
  store.set("d", "again");
  EXPECT_EQ(store.num_keys(), 5);
  store.ask(Op::kDelete, {"a"});
  EXPECT_EQ(store.num_keys(), 4);
  store.ask(Op::kDelete, {"b"});
  store.ask(Op::kDelete, {"c"});
  EXPECT_EQ(store.num_keys(), 2);
  store.set("a", "");
  EXPECT_EQ(store.num_keys(), 3);
}

TEST(Table, CompareSetAnswersTheValueHeldAfterwards) {
  TableDriver store;
  EXPECT_EQ(store.bytes(Op::kCompareSet, {"k", "wrong", "new"}), "wrong");  // missing stays missing
  EXPECT_EQ(store.ask(Op::kCheck, {"k"}), kNotReady);
  EXPECT_EQ(store.bytes(Op::kCompareSet, {"k", "", "first"}), "first");
  EXPECT_EQ(store.bytes(Op::kCompareSet, {"k", "wrong", "second"}), "first");
  EXPECT_EQ(store.get("k"), "first");
  EXPECT_EQ(store.bytes(Op::kCompareSet, {"k", "", "second"}), "first");
  EXPECT_EQ(store.bytes(Op::kCompareSet, {"k", "first", "second"}), "second");
  EXPECT_EQ(store.get("k"), "second");
}

TEST(Table, AppendExtendsOrCreates) {
  TableDriver store;
  store.set("a", "po");
  store.ask(Op::kAppend, {"a", "tato"});
  EXPECT_EQ(store.get("a"), "potato");
  store.ask(Op::kAppend, {"b", "po"});
  store.ask(Op::kAppend, {"b", "tato"});
  EXPECT_EQ(store.get("b"), "potato");
}

TEST(Table, MultiSetAndMultiGetKeepTheOrder) {
  TableDriver store;
  EXPECT_EQ(store.ask(Op::kMultiSet, {"a", "1", "b", "22", "a", "3"}), "");
  std::string expected;
  for (const char* value : {"22", "3", "", "22"}) put_bytes(value, expected);
  EXPECT_EQ(store.ask(Op::kMultiGet, {"b", "a", "missing", "b"}), expected);
  EXPECT_EQ(store.ask(Op::kMultiGet, {}), "");
}

TEST(Table, AMissingKeyGetsAnEmptyValue) {
  TableDriver store;
  EXPECT_EQ(store.get("missing"), "");
  EXPECT_EQ(store.num_keys(), 0);
}

TEST(Table, PingIsEchoed) {
  TableDriver store;
  std::string expected;
  put_nonce(0xfedcba98U, expected);
  EXPECT_EQ(store.ask(Op::kPing, {}, 0xfedcba98), expected);
}

TEST(Table, ListsRawNamesWithoutQueues) {
  TableDriver store;
  store.set("/a", "1");
  store.add("init/", 1);
  store.ask(Op::kQueuePush, {"/q", "x"});
  const std::string answer = store.ask(Op::kListKeys, {});
  ASSERT_EQ(get_u64(answer), 2U);
  std::set<std::string> names;
  for (std::size_t at = 8; at < answer.size();) {
    const std::size_t size = get_u64(std::string_view(answer).substr(at));
    names.insert(answer.substr(at + 8, size));
    at += 8 + size;
  }
  EXPECT_EQ(names, (std::set<std::string>{"/a", "init/"}));
}

TEST(Table, QueuesAreFirstInFirstOut) {
  TableDriver store;
  EXPECT_EQ(store.number(Op::kQueueLength, {"q"}), 0);
  EXPECT_EQ(store.ask(Op::kCheck, {"q"}), kNotReady);
  store.ask(Op::kQueuePush, {"q", "1"});
  store.ask(Op::kQueuePush, {"q", "2"});
  EXPECT_EQ(store.ask(Op::kCheck, {"q"}), kReady);
  EXPECT_EQ(store.number(Op::kQueueLength, {"q"}), 2);
  std::string first;
  put_number(2, first);
  put_bytes("1", first);
  EXPECT_EQ(store.ask(Op::kQueuePop, {"q"}), first);
  std::string second;
  put_number(1, second);
  put_bytes("2", second);
  EXPECT_EQ(store.ask(Op::kQueuePop, {"q"}), second);
  EXPECT_EQ(store.number(Op::kQueuePop, {"q"}), 0);
  EXPECT_EQ(store.ask(Op::kCheck, {"q"}), kNotReady);
  EXPECT_EQ(store.table.stored_bytes(), 0U);
}

TEST(Table, AQueueAndAKeyMayShareAName) {
  TableDriver store;
  store.set("x", "map");
  store.ask(Op::kQueuePush, {"x", "queue"});
  EXPECT_EQ(store.get("x"), "map");
  EXPECT_EQ(store.num_keys(), 1);
  EXPECT_EQ(store.number(Op::kDelete, {"x"}), 1);  // the map only
  EXPECT_EQ(store.number(Op::kQueueLength, {"x"}), 1);
}

TEST(Table, BarrierPassesWhenAllArrivedAndEverAfter) {
  TableDriver store;
  EXPECT_EQ(store.ask(Op::kBarrier, {"b"}, 3, 1), "");
  EXPECT_EQ(store.ask(Op::kBarrier, {"b"}, 3, 2), "");
  EXPECT_EQ(store.get("b"), "2");
  EXPECT_EQ(store.ask(Op::kBarrier, {"b"}, 3, 3), kReady);
  EXPECT_EQ(store.woken, (Woken{1, 2}));
  EXPECT_EQ(store.ask(Op::kBarrier, {"b"}, 3, 1), kReady);
  EXPECT_EQ(store.get("b"), "4");
}

TEST(Table, ATimedOutArrivalAtABarrierStillCounts) {
  TableDriver store;
  store.ask(Op::kBarrier, {"b"}, 2, 1);
  EXPECT_EQ(store.ask(Op::kCancelWait, {}, 0, 1), kNotReady);
  EXPECT_EQ(store.ask(Op::kBarrier, {"b"}, 2, 2), kReady);
  EXPECT_EQ(store.woken, Woken{});
}

TEST(Table, OnlyCompletionOfABarrierWakesAPlainWait) {
  TableDriver store;
  EXPECT_EQ(store.wait(9, {"b"}), "");
  store.ask(Op::kBarrier, {"b"}, 2, 1);
  EXPECT_EQ(store.woken, Woken{});
  EXPECT_EQ(store.wait(8, {"b"}), kReady);  // asked later: the key is there
  store.ask(Op::kBarrier, {"b"}, 2, 2);
  EXPECT_EQ(store.woken, (Woken{9, 1}));
}

TEST(Table, ABarrierAtWhatIsNoNumberIsAnError) {
  TableDriver store;
  store.set("b", "x");
  EXPECT_EQ(store.ask(Op::kBarrier, {"b"}, 2), "error");
}

TEST(Table, StoredBytesHaveALimit) {
  TableDriver store(StoreLimits{.stored_bytes = 3 * (kEntryOverheadBytes + 10)});
  store.set("a", "123456789");
  store.set("b", "123456789");
  EXPECT_EQ(store.ask(Op::kSet, {"c", "1234567890123"}), "error");
  EXPECT_EQ(store.error.code(), ErrorCode::kLimit);
  EXPECT_EQ(store.ask(Op::kCheck, {"c"}), kNotReady);
  EXPECT_EQ(store.ask(Op::kSet, {"c", "123456789"}), "");
  EXPECT_EQ(store.ask(Op::kAppend, {"c", "0"}), "error");
  EXPECT_EQ(store.ask(Op::kSet, {"c", "1234567890"}), "error");
  EXPECT_EQ(store.get("c"), "123456789");
  EXPECT_EQ(store.ask(Op::kQueuePush, {"q", ""}), "error");
  store.ask(Op::kDelete, {"a"});
  EXPECT_EQ(store.ask(Op::kSet, {"d", "123456789"}), "");
}

TEST(Table, KeysHaveALimit) {
  TableDriver store(StoreLimits{.keys = 2});
  store.set("a", "");
  store.ask(Op::kQueuePush, {"q", ""});
  EXPECT_EQ(store.ask(Op::kSet, {"b", ""}), "error");
  EXPECT_EQ(store.ask(Op::kAdd, {"b"}, 1), "error");
  EXPECT_EQ(store.ask(Op::kQueuePush, {"r", ""}), "error");
  EXPECT_EQ(store.ask(Op::kSet, {"a", "again"}), "");
  EXPECT_EQ(store.ask(Op::kQueuePush, {"q", "again"}), "");
}

TEST(Table, OneAnswerHasALimit) {
  TableDriver store(StoreLimits{.reply_bytes = 100});
  store.set("a", std::string(40, 'v'));
  EXPECT_EQ(store.get("a").size(), 40U);
  EXPECT_EQ(store.ask(Op::kMultiGet, {"a", "a"}).size(), 96U);
  EXPECT_EQ(store.ask(Op::kMultiGet, {"a", "a", "a"}), "error");
  store.set("b", std::string(101, 'v'));
  EXPECT_EQ(store.ask(Op::kGet, {"b"}), "error");
  EXPECT_EQ(store.ask(Op::kCompareSet, {"b", "", "x"}), "error");
  for (int i = 0; i < 10; ++i) store.set(std::string(10, static_cast<char>('0' + i)), "");
  EXPECT_EQ(store.ask(Op::kListKeys, {}), "error");
}

TEST(Table, AFailedRequestLeavesNoHalfAnswer) {
  TableDriver store(StoreLimits{.reply_bytes = 100});
  store.set("a", std::string(40, 'v'));
  Replies out;
  const std::vector<std::string_view> one = {"a"};
  const std::vector<std::string_view> three = {"a", "a", "a"};
  ASSERT_TRUE(store.table.apply(1, {Op::kGet, 0, one}, out).has_value());
  ASSERT_TRUE(store.table.apply(1, {Op::kMultiGet, 0, three}, out).has_error());
  EXPECT_EQ(out.reply.size(), 48U);
}

TEST(Table, ALargeValueIsNotCopiedIntoTheAnswer) {
  TableDriver store;
  for (const std::size_t size : {kLargeValueBytes - 1, kLargeValueBytes, 3 * kLargeValueBytes}) {
    store.set("a", std::string(size, 'v'));
    Replies out;
    const std::vector<std::string_view> key = {"a"};
    ASSERT_TRUE(store.table.apply(1, {Op::kGet, 0, key}, out).has_value());
    EXPECT_EQ(get_u64(out.reply), size);
    EXPECT_EQ(out.bytes(), 8 + size);
    EXPECT_EQ(out.large_value.size(), size < kLargeValueBytes ? 0 : size);
  }
}

}  // namespace
}  // namespace ddprun::store
