// Reads of workers' files: one optimizer hides no other, and nothing in a file costs too much.
#include "agent/replicas/replica_watch.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <utility>

#include "tests/support/silent_session.h"
#include "tests/support/temporary_folder.h"

namespace ddprun::agent {
namespace {

using Words = std::vector<std::uint64_t>;

// Keeps what it is told, and ends the loop then.
class KeepingSession final : public SilentSession {
 public:
  explicit KeepingSession(asio::io_context& loop) : loop_(loop) {}
  void report_replicas(const rendezvous::ReplicaReport& report) override {
    reports.push_back(report);
    loop_.stop();
  }

  std::vector<rendezvous::ReplicaReport> reports;

 private:
  asio::io_context& loop_;
};

struct ReplicaWatchTest : FolderTest {
  // One tensor, one check.
  void write_checks(int local_rank, int optimizer, std::uint64_t step) const {
    const Words words{0x31'53'41'43'49'4C'50'52, 1, 2, 7, 88, 1, 1, 0, step, 50, 60};
    std::ofstream file(
        folder / ("replicas_" + std::to_string(local_rank) + "_" + std::to_string(optimizer)),
        std::ios::binary);
    file.write(reinterpret_cast<const char*>(words.data()),
               static_cast<std::streamsize>(words.size() * sizeof(std::uint64_t)));
    file << "w";
  }

  asio::io_context loop;
  KeepingSession session{loop};
  std::vector<std::string> reasons;
  ReplicaWatch watch{
      loop,
      {.session = [this] { return &session; },
       .folder = [this] { return folder.string(); },
       .differ = [](const rendezvous::ReplicaVerdict&) {},
       .not_compared = [this](int, const std::string& why) { reasons.push_back(why); }}};
};

// The first optimizer may have been one that is not compared.
TEST_F(ReplicaWatchTest, AnOptimizerWithoutAFileHidesNoOther) {
  write_checks(1, 1, 20);
  watch.attempt_begins({.round = 3, .workers = 2, .first_rank = 4});
  loop.run();
  ASSERT_EQ(session.reports.size(), 1U);
  EXPECT_EQ(session.reports[0].round, 3);
  ASSERT_EQ(session.reports[0].sums.size(), 1U);
  EXPECT_EQ(session.reports[0].sums[0].step, 20);
  EXPECT_EQ(session.reports[0].sums[0].ranks, std::vector<int>{5});
}

TEST_F(ReplicaWatchTest, ReasonsAreBoundedAndNoFifoIsWaitedFor) {
  watch.attempt_begins({.round = 3, .workers = 3});
  std::ofstream many(folder / "replicas_0_why");
  for (int one = 0; one < 100; ++one) many << "reason " << one << '\n';
  many.close();
  ASSERT_EQ(::mkfifo((folder / "replicas_1_why").c_str(), 0600), 0);
  ASSERT_EQ(::mkfifo((folder / "replicas_2_0").c_str(), 0600), 0);
  watch.hear(rendezvous::ReplicaQuestion{.round = 3, .set = 7, .step = 20});
  watch.attempt_ends();
  EXPECT_EQ(reasons.size(), 16U);
}

}  // namespace
}  // namespace ddprun::agent
