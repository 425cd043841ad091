#include "rendezvous/control/pages/status_page.h"

#include <gtest/gtest.h>

#include "rendezvous/control/pages/page_text.h"
#include "rendezvous/control/pages/timeline_drawing.h"
#include "tests/rendezvous/control/pages/simulated_report.h"

namespace ddprun::http {
namespace {

bool has(const std::string& text, const std::string& part) { return count(text, part) > 0; }

StatusReport report_of(std::vector<SeatStatus> seats) {
  StatusReport report{.program = "ddprun", .hostname = "n0"};
  report.now = WallTime(std::chrono::hours(24 * 365));
  report.started = report.now - std::chrono::seconds(3725);
  report.jobs = {{.id = "train", .state = "running", .round = 2, .min_nodes = 1, .max_nodes = 4}};
  report.jobs.front().seats = std::move(seats);
  return report;
}

TEST(StatusPage, ShowsJobsSeatsAndReasons) {
  StatusReport report = report_of(
      {{0, "n0", 0, 2, "running"}, {1, "n1", 2, 1, "running"}, {-1, "n2", -1, 1, "spare"}});
  report.jobs.front().knows_all_seats = true;
  report.jobs.front().reasons = {{WallTime(std::chrono::seconds(86'400)), "rank 2 was killed"}};
  const std::string page = status_page(report);
  EXPECT_TRUE(has(page, "<td>0<td>n0<td>0–1<td>running")) << page;
  EXPECT_TRUE(has(page, "<td>1<td>n1<td>2<td>running")) << page;
  EXPECT_TRUE(has(page, "<td>–<td>n2<td>–<td>spare")) << page;
  EXPECT_TRUE(has(page, "<td>1970-01-02 00:00:00 UTC<td>rank 2 was killed")) << page;
  EXPECT_TRUE(has(page, "1971-01-01 00:00:00 UTC; up for 1 h 2 min 5 s")) << page;
  EXPECT_TRUE(has(page, "of 1:4 nodes"));
  EXPECT_TRUE(has(page, ">healthy</p>"));
  EXPECT_FALSE(has(page, "own seat alone"));
}

TEST(StatusPage, TakesNothingFromElsewhere) {
  const std::string page = status_page(report_of({}));
  for (const char* foreign : {"http:", "https:", "src=", "@import", "url(", "<script", "<link"})
    EXPECT_FALSE(has(page, foreign)) << foreign;
}

TEST(StatusPage, EscapesForeignTexts) {
  const std::string evil = "<script>x</script>&\"'";
  StatusReport report = report_of({{0, evil, 0, 1, evil}});
  report.program = report.hostname = report.unhealthy = evil;
  report.jobs.front().id = report.jobs.front().state = evil;
  report.jobs.front().reasons = {{{}, evil}};
  const std::string page = status_page(report);
  EXPECT_FALSE(has(page, "<script"));
  EXPECT_EQ(count(page, "&lt;script&gt;x&lt;/script&gt;&amp;&quot;&#39;"), 14U);
}

TEST(StatusPage, IsBounded) {
  StatusReport report =
      report_of(std::vector<SeatStatus>(kMostSeatsShown + 2, {0, "n", 0, 1, "running"}));
  report.jobs.front().reasons.resize(kMostReasonsShown + 3);
  report.jobs.front().id = std::string(kMostTextShown + 1, 'x');
  report.jobs.resize(kMostJobsShown + 1, report.jobs.front());
  const std::string page = status_page(report);
  EXPECT_EQ(count(page, "<td>n<td>"), kMostSeatsShown);
  EXPECT_TRUE(has(page, "2 more nodes are not shown"));
  EXPECT_TRUE(has(page, "1002 more nodes are not shown"));
  EXPECT_TRUE(has(page, "1 more job is not shown"));
  EXPECT_FALSE(has(page, std::string(kMostTextShown + 1, 'x')));
  EXPECT_LT(page.size(), 2U << 20);
}

}  // namespace
}  // namespace ddprun::http
