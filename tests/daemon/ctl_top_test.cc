#include "daemon/ctl_top.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <sstream>

namespace ddprun::daemon {
namespace {

using rendezvous::JobSnapshot;
using rendezvous::MemberState;
using rendezvous::PeriodKind;

// 1970-01-01 00:30:00
const http::WallTime kNow{std::chrono::minutes(30)};

JobSnapshot job_of(int nodes) {
  JobSnapshot job{.job = "train",
                  .phase = rendezvous::JobPhase::kRunning,
                  .round = 2,
                  .restarts = 1,
                  .max_restarts = 3,
                  .max_nodes = nodes};
  for (int i = 0; i < nodes; ++i)
    job.nodes.push_back({.hostname = "n" + std::to_string(i),
                         .node_rank = i,
                         .workers = 4,
                         .state = MemberState::kRunning});
  job.incidents = {{.unix_ms = 900'000, .round = 1, .text = "it died\x1b[2J"}};
  job.periods = {{.begin_ms = 0, .end_ms = 900'000, .round = 1, .workers = 4 * nodes},
                 {.begin_ms = 900'000, .round = 2, .workers = 4 * nodes}};
  return job;
}

JobSnapshot that_stands_still(JobSnapshot job) {
  job.periods.push_back({.kind = PeriodKind::kStandstill,
                         .begin_ms = 1'700'000,
                         .text = "rank 2 sleeps",
                         .ranks = {2}});
  return job;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(CtlTop, ShowsRanksByStateAndATimeline) {
  const std::string text = top_text({job_of(2)}, {}, {.columns = 80}, kNow);
  EXPECT_TRUE(has(text,
                  "train: running, round 2, 2 nodes, 8 workers, 1 of 3 restarts spent; "
                  "1970-01-01 0"))
      << text;
  EXPECT_TRUE(has(text, "0 n0                     rrrr\n1 n1                     rrrr\n")) << text;
  EXPECT_TRUE(has(text, "r running: 2 nodes, 8 workers (nodes 0–1)\n")) << text;
  EXPECT_TRUE(has(text, "rounds                   1111111111")) << text;
  EXPECT_TRUE(has(text, "2222222222\n")) << text;
  EXPECT_TRUE(has(text, "00:15:00 failure: it died [2J\n")) << text;
  EXPECT_FALSE(has(text, "\x1b"));
}

TEST(CtlTop, AStandstillIsNamed) {
  const JobSnapshot job = that_stands_still(job_of(2));
  const std::string text = top_text({job}, {}, {}, kNow);
  EXPECT_TRUE(has(text, "STANDS STILL: rank 2 sleeps\n")) << text;
  EXPECT_TRUE(has(text, "0 n0                     ……!…\n")) << text;
  EXPECT_TRUE(has(top_text({job}, {}, {.has_colours = true}, kNow), "\x1b[31;1m!\x1b[0m"));
}

TEST(CtlTop, ManyNodesAreCounted) {
  const std::string text = top_text({that_stands_still(job_of(1000))}, {}, {}, kNow);
  EXPECT_TRUE(has(text, "! stands still: 1 node, 4 workers (node 0)\n")) << text;
  EXPECT_TRUE(has(text, "… held up: 999 nodes, 3996 workers (nodes 1–999)\n")) << text;
  EXPECT_LT(text.size(), 4096U);
}

TEST(CtlTop, RatesAreMadeOfTwoAnswers) {
  JobSnapshot job = job_of(1);
  job.ranks = {{.rank = 0, .steps = 30, .quiet_ms = 1200, .memory_bytes = 7 << 20}, {.rank = 1}};
  job.ranks[0].spread = {50'100, 61'700, 40'000, 42'000, 45'000};
  TopBefore before{.jobs = {job}, .age = std::chrono::seconds(2)};
  before.jobs[0].ranks[0].steps = 10;
  EXPECT_TRUE(has(top_text({job}, before, {}, kNow),
                  "RANK  STEPS  A SECOND  LAST STEP  STEP P50, P99  OWN P50, P99   MEMORY\n"
                  "0     30     10        1.2 s ago  50.1, 61.7 ms  40.0, 45.0 ms  7 MiB\n"
                  "1     -      -         -          -              -              -\n"));
  before.jobs[0].round = 1;
  EXPECT_TRUE(has(top_text({job}, before, {}, kNow), "0     30     -  "));
}

TEST(CtlTop, OddNumbersHarmNothing) {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  JobSnapshot job = that_stands_still(job_of(3));
  for (auto& node : job.nodes) node.workers = std::numeric_limits<int>::max();
  job.nodes[1].workers = -5;
  job.incidents[0].unix_ms = -kMost;
  job.periods[0].begin_ms = -kMost;
  job.periods[1].begin_ms = kMost;
  job.periods[1].round = -kMost;
  job.ranks = {{.rank = -1, .steps = kMost, .quiet_ms = kMost, .memory_bytes = kMost}};
  EXPECT_TRUE(has(top_text({job}, {.jobs = {job}, .age = std::chrono::seconds(1)}, {}, kNow),
                  "stands still: 1 node"));
}

TEST(CtlTop, KeepsToTheScreen) {
  JobSnapshot job = that_stands_still(job_of(64));
  for (auto& node : job.nodes) node.workers = 100'000;
  job.nodes[0].hostname = std::string(5000, 'x');
  const std::string text =
      top_text({job, job}, {}, {.columns = 50, .rows = 20, .has_colours = false}, kNow);
  std::istringstream lines(text);
  std::string line;
  int count = 0;
  while (std::getline(lines, line)) {
    ++count;
    EXPECT_LE(std::ranges::count_if(line, [](char byte) { return (byte & 0xC0) != 0x80; }), 50);
  }
  EXPECT_EQ(count, 20);
  EXPECT_TRUE(has(text, " more lines\n"));
  EXPECT_EQ(top_text({}, {}, {}, kNow), "no job is there\n");
}

}  // namespace
}  // namespace ddprun::daemon
