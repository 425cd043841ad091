// The waits that a key wakes. A waiter that is gone costs nothing.
#include <gtest/gtest.h>

#include <set>

#include "tests/store/table_driver.h"

namespace ddprun::store {
namespace {

using Woken = std::vector<ConnectionId>;

TEST(Waits, APresentKeyAnswersAtOnce) {
  TableDriver store;
  store.set("a", "");
  store.ask(Op::kQueuePush, {"q", "x"});
  EXPECT_EQ(store.wait(1, {"a"}), kReady);
  EXPECT_EQ(store.wait(1, {"a", "q"}), kReady);
  EXPECT_EQ(store.wait(1, {}), kReady);
}

TEST(Waits, EveryKindOfWriteWakes) {
  TableDriver store;
  const std::vector<std::pair<Op, std::vector<std::string_view>>> writes = {
      {Op::kSet, {"k", "v"}},
      {Op::kAdd, {"k"}},
      {Op::kAppend, {"k", "v"}},
      {Op::kMultiSet, {"j", "", "k", ""}},
      {Op::kCompareSet, {"k", "", "v"}},
      {Op::kQueuePush, {"k", "v"}}};
  for (const auto& [op, fields] : writes) {
    EXPECT_EQ(store.wait(7, {"k"}), "") << static_cast<int>(op);
    store.ask(op, fields);
    EXPECT_EQ(store.woken, Woken{7}) << static_cast<int>(op);
    store.ask(Op::kDelete, {"k"});
  }
}

TEST(Waits, ACompareSetThatStoresNothingWakesNobody) {
  TableDriver store;
  store.wait(7, {"k"});
  store.ask(Op::kCompareSet, {"k", "expected", "v"});
  EXPECT_EQ(store.woken, Woken{});
  EXPECT_EQ(store.table.waits().registrations(), 1U);
}

TEST(Waits, ADeleteWakesNobody) {
  TableDriver store;
  store.wait(7, {"k"});
  store.ask(Op::kDelete, {"k"});
  EXPECT_EQ(store.woken, Woken{});
}

TEST(Waits, WaitersAreWokenInTheOrderTheyCame) {
  TableDriver store;
  for (const ConnectionId id : {5, 3, 9, 4}) store.wait(id, {"k"});
  store.set("k", "v");
  EXPECT_EQ(store.woken, (Woken{5, 3, 9, 4}));
  store.set("k", "again");
  EXPECT_EQ(store.woken, Woken{});
  EXPECT_EQ(store.table.waits().entries(), 0U);
}

TEST(Waits, AWaitEndsWithItsLastMissingKey) {
  TableDriver store;
  store.set("b", "");
  EXPECT_EQ(store.wait(7, {"a", "b", "c", "d"}), "");
  EXPECT_EQ(store.table.waits().registrations(), 3U);
  store.set("c", "");
  store.set("c", "the same key does not count twice");
  store.set("a", "");
  EXPECT_EQ(store.woken, Woken{});
  store.set("d", "");
  EXPECT_EQ(store.woken, Woken{7});
}

TEST(Waits, ADeletedKeyIsNotWaitedForAgain) {
  TableDriver store;
  store.wait(7, {"a", "b"});
  store.set("a", "");
  store.ask(Op::kDelete, {"a"});
  store.set("b", "");
  EXPECT_EQ(store.woken, Woken{7});
}

TEST(Waits, AKeyNamedTwiceCountsOnce) {
  TableDriver store;
  store.wait(7, {"a", "a", "b", "a"});
  store.set("b", "");
  EXPECT_EQ(store.woken, Woken{});
  store.set("a", "");
  EXPECT_EQ(store.woken, Woken{7});
  store.wait(7, {"q", "q"});
  store.ask(Op::kQueuePush, {"q", "one push is enough"});
  EXPECT_EQ(store.woken, Woken{7});
  EXPECT_EQ(store.table.waits().entries(), 0U);
}

TEST(Waits, ANonEmptyQueueIsNotMissing) {
  // PyTorch's server counts the queue as missing and never answers.
  TableDriver store;
  store.ask(Op::kQueuePush, {"q", "x"});
  store.wait(7, {"q", "k"});
  store.set("k", "");
  EXPECT_EQ(store.woken, Woken{7});
}

TEST(Waits, APushWakesTheOldestWaiterOnly) {
  TableDriver store;
  for (const ConnectionId id : {5, 3, 9}) store.wait(id, {"q"});
  store.ask(Op::kQueuePush, {"q", "1"});
  EXPECT_EQ(store.woken, Woken{5});
  store.table.disconnect(3);
  store.ask(Op::kQueuePush, {"q", "2"});
  EXPECT_EQ(store.woken, Woken{9});
  store.ask(Op::kQueuePush, {"q", "3"});
  EXPECT_EQ(store.woken, Woken{});
  EXPECT_EQ(store.table.waits().entries(), 0U);
}

TEST(Waits, CancelForgetsAndAlwaysAnswersOne) {
  TableDriver store;
  EXPECT_EQ(store.ask(Op::kCancelWait, {}), kNotReady);
  store.wait(1, {"a", "b"});
  store.wait(2, {"a"});
  EXPECT_EQ(store.ask(Op::kCancelWait, {}, 0, 1), kNotReady);
  store.set("b", "");
  store.set("a", "");
  EXPECT_EQ(store.woken, Woken{2});
}

TEST(Waits, ACancelledWaitDoesNotCountForTheNextOne) {
  TableDriver store;
  store.wait(1, {"a", "b"});
  store.ask(Op::kCancelWait, {}, 0, 1);
  store.wait(1, {"b", "c"});
  store.set("a", "");
  store.set("b", "");
  EXPECT_EQ(store.woken, Woken{});
  store.set("c", "");
  EXPECT_EQ(store.woken, Woken{1});
}

TEST(Waits, ADisconnectForgets) {
  TableDriver store;
  store.wait(1, {"a"});
  store.table.disconnect(1);
  store.table.disconnect(1);
  store.set("a", "");
  EXPECT_EQ(store.woken, Woken{});
  EXPECT_EQ(store.table.waits().registrations(), 0U);
}

TEST(Waits, AWaitIsAnsweredBehindTheRequestThatEndsIt) {
  TableDriver store;
  EXPECT_EQ(store.wait(1, {"n"}), "");
  std::string expected;
  put_number(4, expected);
  expected += kReady;
  EXPECT_EQ(store.ask(Op::kAdd, {"n"}, 4, 1), expected);
  EXPECT_EQ(store.woken, Woken{});  // it is in the answer
}

TEST(Waits, WaitsOfOneConnectionAreIndependent) {
  TableDriver store;
  store.wait(7, {"a"});
  store.wait(7, {"b"});
  store.set("b", "");
  EXPECT_EQ(store.woken, Woken{7});
  store.set("a", "");
  EXPECT_EQ(store.woken, Woken{7});
}

TEST(Waits, CancellingWithoutEndLeavesNoHeap) {
  TableDriver store;
  store.wait(2, {"never"});
  for (int i = 0; i < 100'000; ++i) {
    store.wait(1, {"never", "ever"});
    store.ask(Op::kCancelWait, {}, 0, 1);
  }
  EXPECT_EQ(store.table.waits().registrations(), 1U);
  EXPECT_LE(store.table.waits().entries(), 1100U);
  store.set("never", "");
  EXPECT_EQ(store.woken, Woken{2});
}

TEST(Waits, PendingWaitsHaveALimit) {
  TableDriver store(StoreLimits{.registrations = 3});
  store.wait(1, {"a", "b"});
  EXPECT_EQ(store.wait(2, {"c", "d"}), "error");
  EXPECT_EQ(store.error.code(), ErrorCode::kLimit);
  EXPECT_EQ(store.table.waits().registrations(), 2U);
  EXPECT_EQ(store.wait(2, {"c"}), "");
  EXPECT_EQ(store.ask(Op::kBarrier, {"b"}, 2, 3), "error");
}

TEST(Waits, NamesWaitedForCountAsMemory) {
  TableDriver store(StoreLimits{.stored_bytes = 1000});
  const std::string long_name(400, 'k');
  EXPECT_EQ(store.wait(1, {long_name}), "");
  EXPECT_EQ(store.wait(1, {long_name}),
            "");  // already there, though counted before it is looked up
  EXPECT_EQ(store.wait(1, {long_name + "2", long_name + "3"}), "error");
  store.set(long_name, "");
  EXPECT_EQ(store.wait(1, {long_name + "2"}), "");
}

TEST(Waits, WaitsOfOneConnectionHaveALimit) {
  TableDriver store;
  for (std::size_t i = 0; i < kWaitsPerConnection; ++i) EXPECT_EQ(store.wait(1, {"k"}), "");
  EXPECT_EQ(store.wait(1, {"k"}), "error");
  EXPECT_EQ(store.wait(2, {"k"}), "");
}

TEST(Waits, ManyWaitersOnManyKeysAreEachWokenOnce) {
  constexpr ConnectionId ranks = 200;
  TableDriver store;
  std::vector<std::string> names;
  for (ConnectionId rank = 0; rank < ranks; ++rank) names.push_back("rank" + std::to_string(rank));
  const std::vector<std::string_view> all(names.begin(), names.end());
  std::multiset<ConnectionId> woken;
  for (ConnectionId rank = 0; rank < ranks; ++rank) {
    store.set(names[rank], "address");
    woken.insert(store.woken.begin(), store.woken.end());
    if (!store.wait(rank + 1, all).empty()) woken.insert(rank + 1);
  }
  EXPECT_EQ(woken.size(), ranks);
  EXPECT_EQ(std::set(woken.begin(), woken.end()).size(), ranks);
  EXPECT_EQ(store.table.waits().entries(), 0U);
}

}  // namespace
}  // namespace ddprun::store
