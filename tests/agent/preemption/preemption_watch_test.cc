#include "agent/preemption/preemption_watch.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <utility>

#include "tests/support/silent_session.h"
#include "tests/support/temporary_folder.h"

namespace ddprun::agent {
namespace {

using rendezvous::StepOrder;
using rendezvous::StepStage;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Said = std::vector<std::string>;

// Keeps what the node says.
class NodeSession final : public SilentSession {
 public:
  explicit NodeSession(Said& said) : said_(said) {}
  void give_notice(const rendezvous::Notice& it) override {
    said_.push_back(fmt::format("notice {} of round {}", it.signo, it.round));
  }
  void answer_step(const rendezvous::StepAnswer& it) override {
    said_.push_back(fmt::format("#{}: {}", it.number, it.steps));
  }

 private:
  Said& said_;
};

// Two workers, of round 3.
struct PreemptionWatchTest : FolderTest {
  void SetUp() override {
    FolderTest::SetUp();
    pages.emplace(WorkerPages::make(folder / "pages", 2).value());
    for (const int rank : running) pages->begin(rank, false);
    watch.attempt_begins({.round = 3, .workers = 2});
  }
  // Returns what the node has said and done since the last call.
  Said order(StepStage stage, std::int64_t number, std::int64_t step, bool is_end = true,
             milliseconds deadline = seconds(90)) {
    watch.hear(StepOrder{.round = 3,
                         .number = number,
                         .stage = stage,
                         .step = step,
                         .signo = is_end ? SIGTERM : 0,
                         .deadline = deadline,
                         .is_end = is_end});
    return std::exchange(said, {});
  }
  PageOrder in_page(int rank) const { return unpack_order(pages->page(rank).order); }
  // As the worker's hook does.
  void take(int rank, bool asks = false) {
    pages->page(rank).taken = in_page(rank).number | (asks ? kAsksItself : 0);
  }
  // Runs the loop until something is said or done.
  Said next() {
    loop.restart();
    while (said.empty() && loop.run_one_for(seconds(60)) > 0) continue;
    return std::exchange(said, {});
  }

  asio::io_context loop;
  Said said;
  NodeSession session{said};
  std::optional<WorkerPages> pages;
  std::vector<int> running{0, 1};
  Time killed_at{};
  PreemptionWatch watch{
      loop,
      {.session = [this] { return &session; },
       .pages = [this] { return pages ? &*pages : nullptr; },
       .running = [this] { return running; },
       .folder = [this] { return folder.string(); },
       .agreed = [this](const StepOrder& it) { said.push_back(fmt::format("agreed {}", it.step)); },
       .signal = [this](int rank, const StepOrder&) { said.push_back(fmt::format("to {}", rank)); },
       .stop =
           [this](int signo, Time end) {
             said.push_back(fmt::format("stop {}", signo));
             killed_at = end;
           }}};
};

TEST_F(PreemptionWatchTest, TheFarthestRankIsTheAnswer) {
  pages->page(0).steps = 4;
  pages->page(1).steps = 7;
  EXPECT_EQ(order(StepStage::kAsk, 1, 0), Said{"#1: 7"});
  running = {0};
  EXPECT_EQ(order(StepStage::kAsk, 2, 0), Said{"#2: 4"});
  EXPECT_EQ(in_page(0), PageOrder{});
}

TEST_F(PreemptionWatchTest, AStepThatIsHeldIsInThePagesBeforeTheAnswer) {
  pages->page(1).steps = 7;
  EXPECT_EQ(order(StepStage::kHold, 2, 9), Said{"#2: 7"});
  EXPECT_EQ(pages->page(1).order_step, 9U);
  EXPECT_FALSE(in_page(1).is_taken);
  EXPECT_NE(in_page(1).number, 0U);
}

TEST_F(PreemptionWatchTest, RanksThatWaitAreLetGo) {
  order(StepStage::kHold, 2, 9);
  watch.let_go();
  EXPECT_EQ(in_page(0), PageOrder{});
  order(StepStage::kHold, 3, 9);
  order(StepStage::kTake, 4, 9);
  watch.let_go();
  EXPECT_TRUE(in_page(0).is_taken) << "what is agreed stays";
}

TEST_F(PreemptionWatchTest, RanksThatCountTakeTheStepByThemselves) {
  EXPECT_EQ(order(StepStage::kTake, 3, 9), Said{"agreed 9"});
  EXPECT_EQ(
      in_page(0),
      (PageOrder{.number = in_page(1).number, .is_taken = true, .is_end = true, .signo = SIGTERM}));
  std::int64_t step = 0;
  std::ifstream(watch.notice_file()) >> step;
  EXPECT_EQ(step, 9);
  watch.attempt_ends();
  EXPECT_FALSE(std::filesystem::exists(watch.notice_file()));
}

TEST_F(PreemptionWatchTest, WithoutAStepRanksAreSignalledUnlessTheyAsk) {
  pages->page(1).taken = kAsksItself;
  EXPECT_EQ(order(StepStage::kTake, 3, 0), (Said{"agreed 0", "to 0"}));
  EXPECT_EQ(in_page(1).signo, 0);
  pages.reset();
  EXPECT_EQ(order(StepStage::kTake, 4, 0), (Said{"agreed 0", "to 0", "to 1"})) << "nobody counts";
}

TEST_F(PreemptionWatchTest, RanksThatDoNotComeToTheStepAreToldBeforeTheDeadline) {
  const Time begin = now();
  order(StepStage::kTake, 3, 9, true, milliseconds(80));
  take(0);
  EXPECT_EQ(next(), Said{"to 1"});
  EXPECT_GE(now() - begin, milliseconds(60));
}

TEST_F(PreemptionWatchTest, ARankThatAsksIsToldLateWhateverItsStep) {
  pages->page(1).taken = kAsksItself;
  order(StepStage::kTake, 3, 9, true, milliseconds(8));
  EXPECT_EQ(next(), Said{"to 0"});
  EXPECT_EQ(pages->page(1).order_step, 0U);
}

TEST_F(PreemptionWatchTest, ACheckpointThatRanksHaveYetToTakeDelaysTheAnswer) {
  order(StepStage::kTake, 3, 9, false);
  EXPECT_FALSE(in_page(0).is_end);
  EXPECT_FALSE(std::filesystem::exists(watch.notice_file())) << "the job goes on";
  EXPECT_EQ(order(StepStage::kAsk, 4, 0), Said{});
  take(0, true);
  take(1);
  pages->page(1).steps = 9;
  EXPECT_EQ(next(), Said{"#4: 9"});
}

TEST_F(PreemptionWatchTest, ATakeEndsTheWaitForACheckpoint) {
  order(StepStage::kTake, 3, 9, false);
  order(StepStage::kAsk, 4, 0);
  order(StepStage::kTake, 5, 0, true, milliseconds(40));
  take(0);
  take(1);
  EXPECT_EQ(next(), Said{}) << "the question is over";
}

TEST_F(PreemptionWatchTest, ANoticeWithoutAnAnswerStopsTheNodeAtAQuarterOfAShortDeadline) {
  const Time begin = now();
  EXPECT_TRUE(watch.give_notice(SIGUSR1, milliseconds(200)));
  EXPECT_EQ(std::exchange(said, {}), Said{fmt::format("notice {} of round 3", SIGUSR1)});
  EXPECT_EQ(next(), Said{fmt::format("stop {}", SIGUSR1)});
  EXPECT_GE(now() - begin, milliseconds(50));
  EXPECT_GE(killed_at, begin + milliseconds(200));
  EXPECT_LE(killed_at, now() + milliseconds(150)) << "a part of the deadline has passed";
}

TEST_F(PreemptionWatchTest, ANoticeOutlivesTheRoundAndIsAnsweredByATake) {
  watch.give_notice(SIGTERM, milliseconds(40));
  watch.attempt_ends();
  EXPECT_EQ(next(), (Said{"notice 15 of round 3"}));
  EXPECT_EQ(next(), Said{"stop 15"});
  EXPECT_FALSE(watch.give_notice(SIGTERM, seconds(1))) << "no workers run";
  watch.attempt_begins({.round = 3, .workers = 2});
  watch.give_notice(SIGTERM, milliseconds(40));
  order(StepStage::kTake, 1, 9, true, seconds(0));
  EXPECT_EQ(next(), (Said{"to 0", "to 1"})) << "and no stop";
  EXPECT_EQ(next(), Said{});
  EXPECT_TRUE(watch.give_notice(SIGTERM, seconds(1)));
  EXPECT_EQ(said, Said{}) << "all are told already";
}

TEST_F(PreemptionWatchTest, OrdersOfAnotherRoundChangeNothing) {
  watch.hear(StepOrder{.round = 2, .number = 1, .stage = StepStage::kTake, .step = 9});
  watch.attempt_ends();
  order(StepStage::kTake, 1, 9);
  EXPECT_EQ(said, Said{});
  EXPECT_EQ(in_page(0), PageOrder{});
}

}  // namespace
}  // namespace ddprun::agent
