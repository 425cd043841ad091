#include "agent/stragglers/straggler_watch.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "tests/support/silent_session.h"
#include "tests/support/temporary_folder.h"

namespace ddprun::agent {
namespace {

using std::chrono::seconds;

// Keeps what it is told, and ends the loop then.
class NotingSession final : public SilentSession {
 public:
  explicit NotingSession(asio::io_context& loop) : loop_(loop) {}
  void report_steps(const rendezvous::StepReport& report) override {
    reports.push_back(report);
    loop_.stop();
  }

  std::vector<rendezvous::StepReport> reports;

 private:
  asio::io_context& loop_;
};

struct StragglerWatchTest : FolderTest {
  void write_sample(int local_rank, int number) const {
    std::ofstream(folder / ("steps_" + std::to_string(local_rank)))
        << number << "\t7\t4\t100\t1\t51000\t0\t50000\t61000\t40000\t42000\t45000\t40000\n";
  }
  void run() {
    loop.restart();
    loop.run();
  }

  asio::io_context loop;
  NotingSession session{loop};
  std::vector<rendezvous::StragglerVerdict> verdicts;
  StragglerWatch watch{
      loop,
      {.session = [this] { return &session; },
       .folder = [this] { return folder.string(); },
       .workers_cpu = [] { return std::chrono::milliseconds(0); },
       .are_slow = [this](const rendezvous::StragglerVerdict& it) { verdicts.push_back(it); }}};
};

TEST_F(StragglerWatchTest, EachSampleIsToldOnce) {
  write_sample(1, 1);
  watch.attempt_begins({.round = 3, .workers = 2, .first_rank = 4}, seconds(1));
  run();
  write_sample(0, 1);
  run();
  ASSERT_EQ(session.reports.size(), 2U);
  for (const int report : {0, 1}) {
    const rendezvous::StepReport& told = session.reports[static_cast<std::size_t>(report)];
    EXPECT_EQ(told.round, 3);
    ASSERT_EQ(told.samples.size(), 1U);
    EXPECT_EQ(told.samples[0].rank, 5 - report);
    EXPECT_EQ(told.samples[0].step_us, 51'000);
    EXPECT_EQ(watch.spread_of(1 - report).own_p99_us, 45'000);
  }
  watch.attempt_ends();
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST_F(StragglerWatchTest, AVerdictOfAnotherRoundIsNotTold) {
  watch.hear(rendezvous::StragglerVerdict{.round = 3});
  watch.attempt_begins({.round = 3, .workers = 2}, seconds(20));
  watch.hear(rendezvous::StragglerVerdict{.round = 2});
  watch.hear(rendezvous::Look{.round = 3});
  EXPECT_TRUE(verdicts.empty());
  watch.hear(rendezvous::StragglerVerdict{.round = 3, .ranks = {1}});
  EXPECT_EQ(verdicts.size(), 1U);
}

TEST(StragglerWindow, IsWholeSecondsOrNone) {
  EXPECT_EQ(*parse_straggler_window(""), kStragglerWindow);
  EXPECT_EQ(*parse_straggler_window("0"), seconds(0));
  EXPECT_EQ(*parse_straggler_window("3600"), kLongestStragglerWindow);
  for (const char* text : {"3601", "-1", "2.5", "20s", " "})
    EXPECT_EQ(parse_straggler_window(text).error().message(),
              "DDPRUN_STRAGGLER_WINDOW=" + std::string(text) +
                  ": expected whole seconds from 1 to 3600, or 0 for none");
}

}  // namespace
}  // namespace ddprun::agent
