#include "rendezvous/core/seating.h"

#include <gtest/gtest.h>

namespace ddprun::rendezvous {
namespace {

Entrant entrant(const std::string& id, int rank = -1, int slots = 1) {
  NodeSpec spec;
  spec.node_id = id;
  spec.node_rank = rank;
  spec.local_world_size = slots;
  spec.store_port = 1234;
  return {.session = 0, .spec = spec, .observed = {"10.0.0.1"}};
}

std::vector<const Entrant*> pointers(const std::vector<Entrant>& entrants) {
  std::vector<const Entrant*> all;
  for (const Entrant& entrant : entrants) all.push_back(&entrant);
  return all;
}

std::string order(const std::vector<Entrant>& arrivals) {
  std::string text;
  for (const std::size_t i : order_of_seats(pointers(arrivals))) text += arrivals[i].spec.node_id;
  return text;
}

SeatedRound make_round(std::int64_t number, int restarts, const std::vector<Entrant>& entrants) {
  return rendezvous::make_round(number, restarts, pointers(entrants));
}

TEST(Seating, KeepsTheOrderOfArrival) {
  EXPECT_EQ(order({entrant("b"), entrant("a"), entrant("c")}), "bac");
}

TEST(Seating, GivesANodeTheRankItInsistsOn) {
  EXPECT_EQ(order({entrant("c", 2), entrant("x"), entrant("a", 0)}), "axc");
}

TEST(Seating, SeatsARankBeyondTheRoundAnywhere) {
  // 2 of at most 4 nodes came; ranks 2 and 3 do not exist in this round.
  EXPECT_EQ(order({entrant("d", 3), entrant("a", 0)}), "ad");
}

TEST(Seating, NumbersRanksContiguouslyPerNode) {
  const auto [round, seats] =
      make_round(7, 2, {entrant("a", -1, 2), entrant("b", -1, 1), entrant("c", -1, 4)});
  EXPECT_EQ(round.number, 7);
  EXPECT_EQ(round.restart_count, 2);
  EXPECT_EQ(round.world_size, 7);
  EXPECT_EQ(round.node_count, 3);
  ASSERT_EQ(seats.size(), 3U);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(seats[static_cast<std::size_t>(i)].node_rank, i);
  EXPECT_EQ(seats[0].first_rank, 0);
  EXPECT_EQ(seats[1].first_rank, 2);
  EXPECT_EQ(seats[2].first_rank, 3);
}

TEST(Seating, ARoundHasThePortAtWhichItsFirstWorkerServesTheStore) {
  Entrant own = entrant("a");
  own.spec.worker_store_port = 4321;
  EXPECT_EQ(make_round(1, 0, {own, entrant("b")}).round.master_port, 4321);
  EXPECT_EQ(make_round(1, 0, {entrant("b"), own}).round.master_port, 1234);
}

TEST(Seating, CountsRoleRanksPerRole) {
  auto reader = entrant("b", -1, 3);
  reader.spec.role = "reader";
  const auto seats = make_round(1, 0, {entrant("a", -1, 2), reader, entrant("c", -1, 4)}).seats;
  EXPECT_EQ(seats[0].role_first_rank, 0);
  EXPECT_EQ(seats[0].role_world_size, 6);
  EXPECT_EQ(seats[1].role_first_rank, 0);
  EXPECT_EQ(seats[1].role_world_size, 3);
  EXPECT_EQ(seats[2].role_first_rank, 2);
}

TEST(Seating, TakesTheStoreAddressThatTheFirstSeatNames) {
  auto first = entrant("a");
  first.spec.store_address = "192.168.0.9";
  EXPECT_EQ(make_round(1, 0, {first, entrant("b")}).round.master_addr, "192.168.0.9");
}

TEST(Seating, TakesTheAddressTheFirstSeatWasSeenAt) {
  const Round round = make_round(1, 0, {entrant("a"), entrant("b")}).round;
  EXPECT_EQ(round.master_addr, "10.0.0.1");
  EXPECT_EQ(round.master_port, 1234);
}

TEST(Seating, ReplacesLoopbackByWhereRemoteNodesReachedThatMachine) {
  auto here = entrant("a");
  here.observed = {"127.0.0.1", ""};
  auto neighbour = entrant("n");
  neighbour.observed = {"127.0.0.1", "127.0.0.1"};
  auto remote = entrant("b");
  remote.observed = {"10.0.0.2", "10.0.0.7"};
  EXPECT_EQ(make_round(1, 0, {here, neighbour, remote}).round.master_addr, "10.0.0.7");
  EXPECT_EQ(make_round(1, 0, {here, neighbour}).round.master_addr, "127.0.0.1");
}

}  // namespace
}  // namespace ddprun::rendezvous
