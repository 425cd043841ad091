// A worker's error record, and the time after it.
#include "agent/monitors/record_watch.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "tests/support/temporary_folder.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

class RecordWatchTest : public FolderTest {
 protected:
  // Begins to watch two local ranks; rank 1 has no file.
  void begin(std::chrono::milliseconds limit) {
    watch.emplace(loop, limit,
                  RecordWatch::Handlers{[this](int) { return steps; },
                                        [this](int rank) { overdue.push_back(rank); }});
    watch->begin({folder / "error.json", ""});
  }
  void write(const char* name) const { std::ofstream(folder / name) << "{}"; }
  void run() { loop.run_for(100ms); }
  // Until so many are overdue; a watch that misses one runs into the deadline.
  void run_until(std::size_t count) {
    const auto deadline = std::chrono::steady_clock::now() + 30s;
    while (overdue.size() < count && std::chrono::steady_clock::now() < deadline)
      loop.run_one_for(1s);
  }

  asio::io_context loop{1};
  std::optional<RecordWatch> watch;
  std::uint64_t steps = 7;
  std::vector<int> overdue;
};

TEST_F(RecordWatchTest, ARecordIsOverdueOnceItsTimeHasPassed) {
  begin(10ms);
  write("stderr.log");
  run();
  EXPECT_EQ(overdue, std::vector<int>{});
  write("error.json");
  loop.restart();
  run_until(1);
  EXPECT_EQ(overdue, std::vector<int>{0});
}

TEST_F(RecordWatchTest, ARecordThatIsMovedIntoItsPlaceOrWasThereCounts) {
  write("error.json");
  begin(10ms);
  run_until(1);
  write("draft");
  std::rename((folder / "draft").c_str(), (folder / "error.json").c_str());
  run_until(2);
  EXPECT_EQ(overdue, (std::vector<int>{0, 0}));
}

TEST_F(RecordWatchTest, AWorkerThatGoesOnToStepIsLetBe) {
  begin(10ms);
  run();
  write("error.json");
  loop.restart();
  loop.poll();
  steps = 8;
  loop.restart();
  run();
  EXPECT_EQ(overdue, std::vector<int>{});
}

TEST_F(RecordWatchTest, EachAttemptIsWatchedAnew) {
  begin(10ms);
  run();
  watch->begin({"", folder / "error.json"});
  loop.restart();
  run();
  write("error.json");
  loop.restart();
  run_until(1);
  EXPECT_EQ(overdue, std::vector<int>{1});
}

TEST_F(RecordWatchTest, ALimitOfZeroWatchesNothingAndAnEndForgets) {
  begin(0ms);
  write("error.json");
  run();
  begin(10ms);
  watch->end();
  loop.restart();
  run();
  EXPECT_EQ(overdue, std::vector<int>{});
}

}  // namespace
}  // namespace ddprun::agent
