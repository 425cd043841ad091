#include "rendezvous/trust/unproven_connections.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace ddprun::rendezvous {
namespace {

using namespace std::chrono_literals;
using Arrivals = std::vector<UnprovenConnections::Id>;
constexpr auto kInClear = UnprovenConnections::Wire::kClear;
constexpr auto kWithTls = UnprovenConnections::Wire::kTls;

struct UnprovenConnectionsTest : testing::Test {
  void come(int first, int last, const std::string& address = "10.0.0.1") {
    for (int id = first; id <= last; ++id) connections.arrived(id, address, kInClear);
  }
  Arrivals served() {
    Arrivals ids;
    while (const auto id = connections.next(now)) ids.push_back(*id);
    return ids;
  }

  // Many come one after the other, and end so at once: each is served.
  void come_and(void (UnprovenConnections::*end)(UnprovenConnections::Id)) {
    for (int id = 0; id < 1000; ++id) {
      connections.arrived(id, "10.0.0.1", kInClear);
      ASSERT_EQ(connections.next(now), id);
      (connections.*end)(id);
    }
  }

  UnprovenConnections connections{{.served = 4,
                                   .waiting = 100,
                                   .failures_at_once = 8,
                                   .failures_per_second = 2,
                                   .earned = 12,
                                   .earned_lost_per_second = 4,
                                   .tls_cost = 4,
                                   .turn = 2000ms}};
  UnprovenConnections::Time now{};
};

TEST_F(UnprovenConnectionsTest, ThoseThatProveThemselvesAreServedAsFastAsTheyCome) {
  come_and(&UnprovenConnections::proved);
}

TEST_F(UnprovenConnectionsTest, OnlySoManyAreServedAtATime) {
  come(1, 6);
  EXPECT_EQ(served().size(), 4U);
  EXPECT_TRUE(connections.is_waited() && connections.is_full());
  connections.ended(1);
  EXPECT_EQ(served().size(), 1U);
}

TEST_F(UnprovenConnectionsTest, OnlySoManyASecondMayEndWithoutAProof) {
  int count = 0;
  for (int id = 0; id < 100; ++id) {
    connections.arrived(id, "10.0.0.1", kInClear);
    for (const int one : served()) connections.ended(one), ++count;
    for (const int one : connections.too_many()) EXPECT_NE(one, id);
  }
  EXPECT_EQ(count, 8);
  now += 1s;
  EXPECT_EQ(served().size(), 2U);
}

TEST_F(UnprovenConnectionsTest, AHandshakeCostsMore) {
  for (int id = 0; id < 4; ++id) connections.arrived(id, "10.0.0.1", kWithTls);
  EXPECT_EQ(served().size(), 2U);
}

TEST_F(UnprovenConnectionsTest, EachAddressHasItsTurn) {
  come(1, 8, "10.0.0.1");
  EXPECT_EQ(served().size(), 4U);
  come(9, 9, "10.0.0.2");
  connections.ended(1);
  connections.ended(2);
  const Arrivals next = served();
  ASSERT_EQ(next.size(), 2U);
  EXPECT_TRUE(next == Arrivals({9, next[1]}) || next == Arrivals({next[0], 9}));
}

TEST_F(UnprovenConnectionsTest, OfOneAddressTheNewestAndTheOldestByTurns) {
  come(1, 8);
  EXPECT_EQ(served(), Arrivals({1, 8, 2, 7}));
}

TEST_F(UnprovenConnectionsTest, IfTooManyWaitTheOldestOfTheBusiestAddressGoes) {
  come(1, 4);
  served();
  come(11, 110);
  come(130, 130, "10.0.0.2");
  EXPECT_EQ(connections.too_many(), Arrivals({11}));
  EXPECT_EQ(connections.too_many(), Arrivals());
}

TEST_F(UnprovenConnectionsTest, OnesThatProveNothingAreCutWhileOthersWait) {
  come(1, 4);
  served();
  now += 10s;
  EXPECT_EQ(connections.overdue(now), Arrivals()) << "nobody waits";
  come(5, 6);
  EXPECT_EQ(connections.overdue(now), Arrivals({1, 4}));
  EXPECT_EQ(served().size(), 2U);
  come(7, 7);
  EXPECT_EQ(connections.overdue(now), Arrivals({2}));
}

// All that are served have proved themselves, and so on, `turns` times.
void prove(UnprovenConnectionsTest& test, int turns) {
  for (int turn = 0; turn < turns; ++turn)
    for (const int id : test.served()) test.connections.proved(id);
}

TEST_F(UnprovenConnectionsTest, EachProofMakesRoomForOneMoreWhileOthersWait) {
  come(1, 100);
  std::vector<std::size_t> at_a_time;
  while (connections.is_waited()) {
    const Arrivals ids = served();
    at_a_time.push_back(ids.size());
    for (const int id : ids) connections.proved(id);
  }
  EXPECT_EQ(at_a_time, (std::vector<std::size_t>{4, 8, 16, 16, 16, 16, 16, 8}));
  EXPECT_TRUE(connections.is_earning());
}

TEST_F(UnprovenConnectionsTest, ProofsEarnNothingWhileNobodyWaits) {
  for (int id = 0; id < 100; ++id) {
    come(id, id);
    prove(*this, 1);
  }
  come(101, 150);
  EXPECT_EQ(served().size(), 4U);
}

TEST_F(UnprovenConnectionsTest, OnesThatEndWithoutAProofTakeTheRoomBack) {
  come(1, 100);
  prove(*this, 2);
  int failed = 0;
  for (Arrivals ids = served(); !ids.empty(); ids = served())
    for (const int id : ids) connections.ended(id), ++failed;
  EXPECT_EQ(failed, 12 + 8) << "what was earned, and what is allowed at once";
  EXPECT_FALSE(connections.is_earning());
  now += 1s;
  EXPECT_EQ(served().size(), 2U) << "as if nothing had been earned";
}

TEST_F(UnprovenConnectionsTest, QuietTakesTheRoomBack) {
  come(1, 28);
  prove(*this, 3);
  EXPECT_FALSE(connections.is_waited());
  now += 2s;
  come(101, 150);
  EXPECT_EQ(served().size(), 4U + 12U - 2 * 4U);
}

TEST_F(UnprovenConnectionsTest, TheMoreAreServedTheMoreTimeEachHas) {
  come(1, 50);
  prove(*this, 2);
  EXPECT_EQ(served().size(), 16U);
  now += 7999ms;
  EXPECT_EQ(connections.overdue(now).size(), 0U);
  now += 1ms;
  EXPECT_GT(connections.overdue(now).size(), 0U);
}

TEST_F(UnprovenConnectionsTest, OneThatHasGoneCostsNothing) {
  come_and(&UnprovenConnections::was_gone);
}

TEST_F(UnprovenConnectionsTest, ThoseThatGoWhileTheyWaitAreForgotten) {
  come(1, 8);
  served();
  const auto is_gone = [](int id) { return id % 2 == 0; };
  EXPECT_EQ(connections.forget_waiting(is_gone).size(), 2U);
  EXPECT_EQ(connections.waiting(), 2U);
  EXPECT_EQ(connections.forget_waiting(is_gone).size(), 0U);
}

}  // namespace
}  // namespace ddprun::rendezvous
