// The drawings of the page: nodes and ranks by state, the timeline, charts of steps.
#include <gtest/gtest.h>

#include <chrono>

#include "rendezvous/control/pages/rank_grid.h"
#include "rendezvous/control/pages/rank_states.h"
#include "rendezvous/control/pages/status_page.h"
#include "rendezvous/control/pages/step_charts.h"
#include "rendezvous/control/pages/timeline_drawing.h"
#include "tests/rendezvous/control/pages/simulated_report.h"

namespace ddprun::http {
namespace {

using enum SimulatedState;

std::string page_of(int nodes, SimulatedState state) {
  return status_page(simulated_report(nodes, state));
}

std::string grid_of(const JobStatus& job) {
  std::string page;
  std::size_t cells = kMostCells;
  add_rank_grid(job, cells, page);
  return page;
}

// Each element that is opened must be closed, in order. HTML closes some by itself; a drawing's
// parts none.
bool is_balanced(const std::string& page) {
  for (const std::string tag : {"svg", "g", "title", "text", "ul", "section", "details"})
    if (count(page, "<" + tag + ">") + count(page, "<" + tag + " ") !=
        count(page, "</" + tag + ">"))
      return false;
  return true;
}

TEST(StatusDrawings, EveryRankOfASmallJobHasACellAndATitle) {
  const std::string page = page_of(4, kRunning);
  EXPECT_EQ(count(page, "<title>rank "), 32U + 1) << "and the incident";
  EXPECT_EQ(count(page, "<title>rank 31 on gpu-3: running</title><rect class=\"run\""), 1U);
  EXPECT_EQ(count(page, "running: 4 nodes, 32 workers (nodes 0–3)</li>"), 1U);
  EXPECT_EQ(count(page, "held up"), 0U);
}

TEST(StatusDrawings, AStandstillShowsWhoIsToBlameAndWhoIsHeldUp) {
  const std::string page = page_of(4, kStandingStill);
  EXPECT_EQ(count(page, ": stands still</title><rect class=\"stuck\""), 1U);
  EXPECT_EQ(count(page, "<title>rank 2 on gpu-0: stands still</title>"), 1U);
  EXPECT_EQ(count(page, ": held up</title><rect class=\"held\""), 31U);
  EXPECT_EQ(count(page, "stands still: 1 node, 8 workers (node 0)</li>"), 1U);
  EXPECT_EQ(count(page, "Stands still: rank 2 does nothing at train (train.py:18)"), 1U);
  EXPECT_EQ(count(page, "<title>standstill: rank 2 does nothing"), 1U);
}

TEST(StatusDrawings, NodesOfALargeJobAreBands) {
  const std::string page = page_of(1000, kStandingStill);
  EXPECT_EQ(count(page, " on gpu-"), 0U);
  EXPECT_EQ(count(page, "<title>gpu-0, node 0: stands still</title>"), 1U);
  EXPECT_EQ(count(page, "held up: 999 nodes, 7992 workers (nodes 1–999)</li>"), 1U);
  EXPECT_LT(count(page, "role=\"listitem\""), 30U);
}

TEST(StatusDrawings, EverySizeAndStateIsBoundedAndWhole) {
  for (const int nodes : {1, 4, 64, 1000, 10'000})
    for (const SimulatedState state : {kNothing, kRunning, kStandingStill, kFailed}) {
      const std::string page = page_of(nodes, state);
      EXPECT_TRUE(is_balanced(page)) << nodes;
      EXPECT_LT(page.size(), 160U << 10) << nodes;
      EXPECT_EQ(count(page, "<script"), 0U);
    }
}

TEST(StatusDrawings, WhatCannotBeDrawnIsCounted) {
  JobStatus job = simulated_report(10'000, kRunning).jobs.front();
  for (std::size_t i = 0; i < job.seats.size(); i += 2) job.seats[i].state = "waiting";
  const std::string grid = grid_of(job);
  EXPECT_EQ(count(grid, "<svg"), 0U);
  EXPECT_EQ(count(grid,
                  "waiting: 5000 nodes, 40000 workers (nodes 0, 2, 4, 6, 8, 10, 12, 14 and "
                  "4992 more ranges)"),
            1U);
  for (std::size_t i = 0; i < job.seats.size(); ++i) job.seats[i].state = std::to_string(i);
  EXPECT_EQ(count(grid_of(job), "<li>"), kMostStateGroups);
}

TEST(StatusDrawings, AllJobsOfAPageShareItsRoom) {
  StatusReport report = simulated_report(64, kRunning);
  report.jobs.resize(kMostJobsShown, report.jobs.front());
  for (JobStatus& job : report.jobs)
    job.reasons.resize(kMostReasonsShown, {report.now, std::string(2000, '&')});
  const std::string page = status_page(report);
  EXPECT_EQ(count(page, " on gpu-"), kMostCells);
  EXPECT_LE(count(page, "<path class=\"end\""), kMostMarks);
  EXPECT_TRUE(is_balanced(page));
}

TEST(StatusDrawings, HostileTextsStayTexts) {
  const std::string evil = "</title><script>alert(1)</script>\"'\x1b[2J";
  StatusReport report = simulated_report(4, kStandingStill);
  JobStatus& job = report.jobs.front();
  for (SeatStatus& seat : job.seats) seat.hostname = evil;
  job.seats.back().state = job.standstill = job.periods.back().text = job.reasons[0].text = evil;
  for (const int nodes : {4, 1000}) {
    job.seats.resize(static_cast<std::size_t>(nodes), job.seats.back());
    const std::string page = status_page(report);
    EXPECT_EQ(count(page, "<script"), 0U);
    EXPECT_EQ(count(page, "\x1b"), 0U);
    EXPECT_TRUE(is_balanced(page));
  }
  job.seats[0].hostname = std::string(100'000, '&');
  EXPECT_LT(status_page(report).size(), 1U << 20);
}

TEST(StatusDrawings, OddNumbersHarmNothing) {
  JobStatus job = simulated_report(4, kStandingStill).jobs.front();
  job.seats[0].workers = 0;
  job.seats[1].workers = -3;
  job.seats[2].first_rank = -1;
  EXPECT_TRUE(is_balanced(grid_of(job)));
  job.seats[3].workers = 2'000'000'000;
  job.seats[3].first_rank = 2'000'000'000;
  EXPECT_EQ(count(grid_of(job), "<title>rank "), 0U);
}

TEST(StatusDrawings, WorkersHaveChartsOfOneScale) {
  NodeStatus node;
  node.workers = {{.rank = 4,
                   .steps = 70,
                   .memory_bytes = std::uint64_t{3} << 30,
                   .samples = {{.age_s = 10, .per_second = 8, .step_s = 0.125},
                               {.age_s = 5, .per_second = 0, .step_s = 0},
                               {.age_s = 0, .per_second = 4, .step_s = 0.25}}},
                  {.rank = 5, .memory_bytes = 5 << 20}};
  std::string page;
  add_step_charts(node, page);
  EXPECT_EQ(count(page, "<p>rank 4: 70 steps, 4 a second, 250 ms each, 3.0 GiB</p>"), 1U) << page;
  EXPECT_EQ(count(page, "aria-label=\"rank 4: 70 steps, 4 a second"), 1U);
  EXPECT_EQ(count(page, "<p>rank 5: counts no steps, 5 MiB</p>"), 1U);
  EXPECT_EQ(count(page, "d=\"M314.7 0L317.3 32L320 16\""), 1U);
  EXPECT_EQ(count(page, "d=\"M314.7 54M320 38\""), 1U) << "a gap where no step was done";
  EXPECT_EQ(count(page, "up to 8; below the time of a step, up to 250 ms."), 1U);
}

TEST(StatusDrawings, ChartsAreBounded) {
  NodeStatus node;
  WorkerStatus worker{.steps = 1};
  worker.samples.resize(10 * kMostSamples, {.age_s = 300, .per_second = 1e300, .step_s = 1e-300});
  node.workers.resize(kMostCharts + 2, worker);
  std::string page;
  add_step_charts(node, page);
  EXPECT_EQ(count(page, "<svg"), kMostCharts);
  EXPECT_EQ(count(page, "2 more workers not shown"), 1U);
  EXPECT_LT(page.size(), 256U << 10);
  EXPECT_TRUE(is_balanced(page));
}

TEST(StatusDrawings, TheTimelineGoesFromTheFirstEventToNow) {
  StatusReport report = simulated_report(4, kFailed);
  std::string page;
  std::size_t marks = kMostMarks;
  add_timeline(report.jobs.front(), report.now, marks, page);
  EXPECT_EQ(marks, kMostMarks - 4);
  EXPECT_EQ(count(page,
                  "<title>round 1, 32 workers; from 2019-12-20 00:00:05 UTC, for 19 min 45 s"
                  "</title><rect class=\"run\" x=\"80\""),
            1U)
      << page;
  EXPECT_EQ(count(page, "<title>rank 1: exit code 1: CUDA out of memory; 2019-12-20 00:29:10 UTC"),
            1U);
  EXPECT_EQ(count(page, ">00:00:05</text>"), 1U);
  EXPECT_EQ(count(page, ">00:30:00</text>"), 1U);
  page.clear();
  add_timeline(simulated_report(4, kNothing).jobs.front(), report.now, marks, page);
  EXPECT_EQ(page, "");
}

TEST(StatusDrawings, TimesOfAnotherClockStayOnTheAxis) {
  StatusReport report = simulated_report(1, kRunning);
  report.jobs[0].periods[1].begin = report.now + std::chrono::hours(5);
  std::string page;
  std::size_t marks = kMostMarks;
  add_timeline(report.jobs.front(), report.now, marks, page);
  EXPECT_EQ(count(page, "x=\"990\" y=\"0\" width=\"3\""), 1U) << page;
}

}  // namespace
}  // namespace ddprun::http
