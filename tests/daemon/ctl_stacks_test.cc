// Stacks for people: equal ones once, and why there are none.
#include "daemon/ctl_stacks.h"

#include <gtest/gtest.h>

#include <ctime>

namespace ddprun::daemon {
namespace {

using rendezvous::RankStack;

RankStack stack(int rank, int line, const std::string& waits_in = "") {
  return {.rank = rank,
          .pid = 100 + rank,
          .frames = {{"forward", "/venv/lib/python3.11/site-packages/torch/nn/linear.py", 7},
                     {"train", "/home/u/train.py", line}},
          .waits_in = waits_in,
          .kernel = "S"};
}

TEST(CtlStacks, EqualOnesAreShownOnce) {
  EXPECT_EQ(stacks_text({stack(0, 18, "all_reduce #51"), stack(1, 18, "all_reduce #51"),
                         stack(2, 19), stack(3, 18, "all_reduce #51")}),
            "ranks 0-1,3 in all_reduce #51:\n"
            "  forward (torch/nn/linear.py:7)\n"
            "  train (/home/u/train.py:18)\n"
            "\n"
            "rank 2:\n"
            "  forward (torch/nn/linear.py:7)\n"
            "  train (/home/u/train.py:19)\n");
}

TEST(CtlStacks, ThoseWithoutAStackComeLastAndSayWhy) {
  const RankStack held{
      .rank = 0, .pid = 5, .why = "a call holds it", .kernel = "S in futex_wait_queue"};
  const RankStack gone{.rank = 2, .why = "its process has ended"};
  EXPECT_EQ(stacks_text({held, stack(1, 1), gone}),
            "rank 1:\n"
            "  forward (torch/nn/linear.py:7)\n"
            "  train (/home/u/train.py:1)\n"
            "\n"
            "rank 0: no stack: a call holds it; its process is S in futex_wait_queue\n"
            "\n"
            "rank 2: no stack: its process has ended\n");
  EXPECT_EQ(stacks_text({}), "");
}

TEST(CtlStacks, ShowsNothingThatATerminalObeys) {
  const RankStack hostile{
      .rank = 0, .frames = {{"f\n\x1b[2J", "/x\r\x9b.py", 1}}, .waits_in = "sum\n#1"};
  const std::string text = stacks_text({hostile});
  EXPECT_EQ(text, "rank 0 in sum #1:\n  f  [2J (/x \xEF\xBF\xBD.py:1)\n");
}

TEST(CtlStacks, TenThousandRanksAreGroupedInATenthOfASecond) {
  std::vector<RankStack> stacks;
  for (int rank = 0; rank < 10'000; ++rank) stacks.push_back(stack(rank, rank == 513 ? 19 : 18));
  const std::clock_t begin = std::clock();
  const std::string text = stacks_text(stacks);
  const double took = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  EXPECT_TRUE(text.starts_with("ranks 0-512,514-9999:\n")) << text.substr(0, 100);
  RecordProperty("seconds", std::to_string(took));
  EXPECT_LT(took, 2) << "of a processor; 0.1 without a sanitizer";
}

}  // namespace
}  // namespace ddprun::daemon
