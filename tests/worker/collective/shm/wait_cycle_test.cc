#include "worker/collective/shm/wait_cycle.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <optional>

namespace ddprun::worker {
namespace {

// The control segment of four ranks, in memory of this process.
class WaitCycle : public testing::Test {
 protected:
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete[](memory, kAlign); }
  };
  static constexpr std::align_val_t kAlign{kLineBytes};
  static constexpr std::size_t kRanks = 4;

  WaitCycle()
      : memory_(new (::operator new[](control_bytes(kRanks), kAlign))
                    std::byte[control_bytes(kRanks)]{}),
        view{memory_.get(), kRanks} {}

  // Rank `who` waits for the first sum of `whom`.
  void waits(std::size_t who, std::size_t whom) {
    const std::uint32_t operation = view.area(who).operations.begin(OperationKind::kSum, 40);
    marks_.at(who).emplace(view.area(who).waiting, whom, &RankArea::launched, 1, operation);
  }
  void goes_on(std::size_t who) { marks_.at(who).reset(); }
  std::vector<std::size_t> ranks_with(std::size_t rank) const {
    std::vector<std::size_t> ranks;
    for (const WaitLook& look : cycle_of(view, rank)) ranks.push_back(look.rank);
    return ranks;
  }

 private:
  std::unique_ptr<std::byte[], Free> memory_;

 protected:
  const ControlView view;

 private:
  std::array<std::optional<WaitingMark>, kRanks> marks_;
};

using Ranks = std::vector<std::size_t>;

TEST_F(WaitCycle, IsFoundByEachOfItsRanks) {
  EXPECT_EQ(ranks_with(0), Ranks{});
  waits(0, 2);
  EXPECT_EQ(ranks_with(0), Ranks{});
  waits(2, 0);
  EXPECT_EQ(ranks_with(0), (Ranks{0, 2}));
  EXPECT_EQ(ranks_with(2), (Ranks{0, 2}));
  EXPECT_EQ(
      describe(view, cycle_of(view, 2)),
      "rank 0 waits in sum of 40 bytes (operation 1) for rank 2, rank 2 waits in sum of 40 bytes "
      "(operation 1) for rank 0: they do different things, and none of them can go on");
}

TEST_F(WaitCycle, MayHaveManyRanks) {
  waits(3, 1);
  waits(1, 2);
  waits(2, 3);
  EXPECT_EQ(ranks_with(2), (Ranks{1, 2, 3}));
}

TEST_F(WaitCycle, IsNoneForARankThatOnlyWaitsForOneInIt) {
  waits(0, 1);
  waits(1, 2);
  waits(2, 1);
  EXPECT_EQ(ranks_with(0), Ranks{});
}

TEST_F(WaitCycle, IsNoneWhereWhatARankWaitsForIsThere) {
  waits(0, 1);
  waits(1, 0);
  view.area(0).launched.value.store(1);  // rank 1 has not looked again yet
  EXPECT_EQ(ranks_with(0), Ranks{});
}

TEST_F(WaitCycle, IsNoneWhereARankGoesOn) {
  waits(0, 1);
  waits(1, 0);
  goes_on(1);
  EXPECT_EQ(ranks_with(0), Ranks{});
}

TEST_F(WaitCycle, IsDoubtedWhereARankHasBegunAnotherWaitSince) {
  waits(0, 1);
  waits(1, 0);
  const auto cycle = cycle_of(view, 0);
  EXPECT_TRUE(still_wait(view, cycle));
  goes_on(1);
  waits(1, 0);
  EXPECT_FALSE(still_wait(view, cycle));
  EXPECT_TRUE(still_wait(view, cycle_of(view, 0)));
}

}  // namespace
}  // namespace ddprun::worker
