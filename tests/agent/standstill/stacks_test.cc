// Answers of witnesses that were asked more than once, and why a worker has no stack.
#include "agent/standstill/stacks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "agent/standstill/witness_folder.h"
#include "tests/support/temporary_folder.h"

namespace ddprun::agent {
namespace {

TEST(Stacks, WhyThereIsNone) {
  EXPECT_EQ(why_no_stack(true, "python3.11"),
            "its interpreter did not answer: a call of C may hold it");
  EXPECT_EQ(why_no_stack(true, "sleep"),
            "sleep did not answer: it is no Python, or a call of C holds it");
  EXPECT_EQ(why_no_stack(false, "mnist"), "it runs mnist, which is no Python");
  EXPECT_NE(why_no_stack(false, "python3").find("has not imported torch.distributed"),
            std::string::npos);
}

TEST_F(FolderTest, ALaterAnswerWillDo) {
  const auto pages = WorkerPages::make((folder / "pages").string(), 2);
  ASSERT_TRUE(pages.has_value());
  const auto answer = [&](int number, const std::string& function) {
    std::ofstream file(folder / ("witness_1." + std::to_string(number)));
    file << "frame\town\t" << function << "\t/a.py\t7\nend\n";
  };
  const auto read = [&](std::uint64_t number) {
    const auto found = read_witness_answer(folder.string(), *pages, 1, number);
    return found ? found->stack.at(0).function : "";
  };
  EXPECT_EQ(pages->ask_witness(1), 1U);
  EXPECT_EQ(read(1), "");
  pages->ask_witness(1);
  answer(2, "second");
  EXPECT_EQ(read(1), "second");
  answer(1, "first");
  EXPECT_EQ(read(1), "first");
  pages->page(1).asked = 1U << 30;  // a worker can write it
  EXPECT_EQ(read(3), "");
}

// A restart may give the node another seat while a caller waits.
TEST_F(FolderTest, WhoWaitsIsAnsweredWhenTheAttemptEnds) {
  auto pages = WorkerPages::make((folder / "pages").string(), 3);
  ASSERT_TRUE(pages.has_value());
  asio::io_context loop;
  Children children({});
  Stacks stacks(loop, children,
                {.pages = [&] { return &*pages; }, .folder = [&] { return folder.string(); }});
  std::vector<std::vector<int>> answers;
  const auto done = [&](const std::vector<rendezvous::RankStack>& stacks_now) {
    std::vector<int>& ranks = answers.emplace_back();
    std::ranges::transform(stacks_now, std::back_inserter(ranks), &rendezvous::RankStack::rank);
  };
  stacks.take({.workers = 2, .first_rank = 0}, {}, done);
  EXPECT_TRUE(answers.empty()) << "not within the call";
  stacks.attempt_ends();
  stacks.take({.workers = 3, .first_rank = 6}, {8}, done);
  stacks.take({.workers = 3, .first_rank = 6}, {}, done);
  stacks.attempt_ends();
  EXPECT_EQ(answers, (std::vector<std::vector<int>>{{0, 1}, {8}, {6, 7, 8}}));
  stacks.attempt_ends();
  loop.run();
  EXPECT_EQ(answers.size(), 3U);
}

}  // namespace
}  // namespace ddprun::agent
