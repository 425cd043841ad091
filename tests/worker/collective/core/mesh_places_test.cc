// The places of ranks in a grid.
#include "worker/collective/core/mesh_places.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace ddprun::worker {
namespace {

using Axes = std::vector<MeshAxis>;

// The groups along an axis, each in its order.
std::set<std::vector<int>> groups_along(const Axes& axes, std::size_t axis, int ranks) {
  std::map<int, std::map<int, int>> by_color;
  for (int rank = 0; rank < ranks; ++rank) {
    const SplitRequest place = mesh_place(axes, axis, rank);
    by_color[place.color][place.key] = rank;
  }
  std::set<std::vector<int>> groups;
  for (const auto& [color, members] : by_color) {
    std::vector<int> group;
    for (const auto& [key, rank] : members) group.push_back(rank);
    groups.insert(group);
  }
  return groups;
}

TEST(MeshPlaces, CountTheLastAxisFastest) {
  const Axes axes{{"data", 2}, {"tensor", 2}};
  EXPECT_EQ(groups_along(axes, 0, 4), (std::set<std::vector<int>>{{0, 2}, {1, 3}}));
  EXPECT_EQ(groups_along(axes, 1, 4), (std::set<std::vector<int>>{{0, 1}, {2, 3}}));
}

TEST(MeshPlaces, HaveOneGroupForEachPlaceInTheOtherAxes) {
  const Axes axes{{"data", 2}, {"pipeline", 3}, {"one", 1}, {"tensor", 2}};
  EXPECT_EQ(groups_along(axes, 0, 12),
            (std::set<std::vector<int>>{{0, 6}, {1, 7}, {2, 8}, {3, 9}, {4, 10}, {5, 11}}));
  EXPECT_EQ(groups_along(axes, 1, 12),
            (std::set<std::vector<int>>{{0, 2, 4}, {1, 3, 5}, {6, 8, 10}, {7, 9, 11}}));
  EXPECT_EQ(groups_along(axes, 2, 12).size(), 12U);
}

std::string refusal(const Axes& axes, int ranks = 4) {
  try {
    check_axes(axes, ranks);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return {};
}

TEST(MeshPlaces, RefuseAxesThatAreNotAllRanks) {
  EXPECT_EQ(refusal({{"data", 2}, {"tensor", 2}}), "");
  EXPECT_EQ(refusal({{"data", 4}, {"tensor", 1}}), "");
  EXPECT_EQ(refusal({{"data", 2}, {"tensor", 3}}),
            "Mesh: axes 'data=2,tensor=3' given, expected some whose product is the 4 ranks");
  EXPECT_EQ(refusal({{"a", 1 << 20}, {"b", 1 << 20}, {"c", 1 << 20}, {"d", 1 << 20}}),
            "Mesh: axes 'a=1048576,b=1048576,c=1048576,d=1048576' given, expected some whose "
            "product is the 4 ranks");
  EXPECT_EQ(refusal({}), "Mesh: axes '' given, expected some whose product is the 4 ranks");
  EXPECT_EQ(refusal({{"data", 0}}),
            "Mesh: axis data=0 given, expected a name of its own and 1 or more ranks");
  EXPECT_EQ(refusal({{"data", 2}, {"data", 2}}),
            "Mesh: axis data=2 given, expected a name of its own and 1 or more ranks");
}

}  // namespace
}  // namespace ddprun::worker
