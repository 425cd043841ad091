// The owners of parameters. python_parity/join_zero_parity_test.py shows that they are Python's.
#include "worker/training/zero/partition.h"

#include <gtest/gtest.h>

namespace ddprun::worker {
namespace {

using Counts = std::vector<std::vector<std::int64_t>>;

TEST(Partition, GivesTheLargestToTheEmptiest) {
  EXPECT_EQ(partition(Counts{{1, 5, 3, 3, 2}}, 2), (std::vector<Owners>{{1, 0, 1, 1, 0}}));
}

TEST(Partition, GivesEqualOnesInTheirOrderToTheLowestRanks) {
  EXPECT_EQ(partition(Counts{{4, 4, 4, 4}}, 3), (std::vector<Owners>{{0, 1, 2, 0}}));
}

TEST(Partition, CountsOverGroups) {
  EXPECT_EQ(partition(Counts{{9}, {1, 2}}, 2), (std::vector<Owners>{{0}, {1, 1}}));
}

TEST(Partition, KnowsNoParametersAndOneRank) {
  EXPECT_EQ(partition(Counts{{}, {1, 1}}, 1), (std::vector<Owners>{{}, {0, 0}}));
  EXPECT_EQ(partition(Counts{{0, 0}}, 2), (std::vector<Owners>{{0, 0}}));
}

TEST(Partition, ListsAnOwnersParametersLargestFirst) {
  const std::vector<std::int64_t> counts{1, 5, 3, 3, 2};
  const Owners owners = partition(Counts{counts}, 2).front();
  EXPECT_EQ(owned_by(0, owners, counts), (std::vector<std::size_t>{1, 4}));
  EXPECT_EQ(owned_by(1, owners, counts), (std::vector<std::size_t>{2, 3, 0}));
}

}  // namespace
}  // namespace ddprun::worker
