#include "rendezvous/control/pages/metrics_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>

namespace ddprun::http {
namespace {

StatusReport report_of_a_host() {
  StatusReport report{.program = "ddprun", .hostname = "n0", .is_leader = true};
  report.started = WallTime(std::chrono::seconds(1000));
  report.node = NodeStatus{.workers_running = 2,
                           .steps = {{4, 100}, {5, 101}},
                           .stages = {{"detected", 2, 0.5, 0.25}, {"first step", 0, 0, 0}},
                           .store = {7, 4096, 3}};
  report.jobs = {{.id = "job \"1\"\n",
                  .state = "running",
                  .round = 3,
                  .world_size = 8,
                  .restarts = 1,
                  .max_restarts = 5,
                  .nodes_in_round = 4,
                  .nodes_waiting = 1,
                  .spares = 2,
                  .sessions = 7,
                  .restarts_by_reason = {{"worker_failed", 1}, {"resize", 0}}}};
  return report;
}

bool has_line(const std::string& text, const std::string& wanted) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line == wanted) return true;
  return false;
}

TEST(MetricsText, HasWhatTheReportHas) {
  const std::string text = metrics_text(report_of_a_host());
  for (const char* line : {R"(ddprun_info{program="ddprun",hostname="n0"} 1)",
                           "ddprun_start_time_seconds 1000",
                           "ddprun_healthy 1",
                           "ddprun_leader 1",
                           R"(ddprun_jobs{state="running"} 1)",
                           R"(ddprun_round{job="job \"1\"\n"} 3)",
                           R"(ddprun_world_size{job="job \"1\"\n"} 8)",
                           R"(ddprun_nodes{job="job \"1\"\n",state="in_round"} 4)",
                           R"(ddprun_nodes{job="job \"1\"\n",state="waiting"} 1)",
                           R"(ddprun_nodes{job="job \"1\"\n",state="spare"} 2)",
                           R"(ddprun_sessions{job="job \"1\"\n"} 7)",
                           R"(ddprun_restarts_spent{job="job \"1\"\n"} 1)",
                           R"(ddprun_restarts_allowed{job="job \"1\"\n"} 5)",
                           R"(ddprun_restarts_total{job="job \"1\"\n",reason="worker_failed"} 1)",
                           R"(ddprun_restarts_total{job="job \"1\"\n",reason="resize"} 0)",
                           "ddprun_workers 2",
                           R"(ddprun_worker_steps{rank="5"} 101)",
                           R"(ddprun_incident_seconds_sum{stage="detected"} 0.5)",
                           R"(ddprun_incident_seconds_count{stage="detected"} 2)",
                           R"(ddprun_incident_last_seconds{stage="detected"} 0.25)",
                           "ddprun_store_keys 7",
                           "ddprun_store_bytes 4096",
                           "ddprun_store_connections 3"})
    EXPECT_TRUE(has_line(text, line)) << line << "\n" << text;
  EXPECT_EQ(text.find(R"(last_seconds{stage="first step")"), std::string::npos) << "none was seen";
}

TEST(MetricsText, LeavesOutWhatIsNotKnown) {
  StatusReport report{.program = "ddprund", .unhealthy = "no leader", .jobs = {{.id = "j"}}};
  const std::string text = metrics_text(report);
  EXPECT_TRUE(has_line(text, "ddprun_healthy 0"));
  EXPECT_TRUE(has_line(text, "ddprun_leader 0"));
  for (const char* none : {"waiting\"", "spare\"", "ddprun_sessions{", "store", "ddprun_workers"})
    EXPECT_EQ(text.find(none), std::string::npos) << none;
}

TEST(MetricsText, EachMetricIsInOnePieceBelowItsHelpAndType) {
  StatusReport report = report_of_a_host();
  report.jobs.push_back({.id = "second", .state = "joining"});
  std::istringstream lines(metrics_text(report));
  std::set<std::string> families;
  std::string family;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string hash, keyword, name;
    if (line.starts_with("# ")) {
      words >> hash >> keyword >> name;
      if (keyword == "HELP") {
        family = name;
        EXPECT_TRUE(families.insert(family).second) << name << " comes twice";
      }
      EXPECT_EQ(name, family);
    } else {
      words >> name;
      EXPECT_TRUE(name.starts_with(family)) << line;
    }
  }
  EXPECT_GT(families.size(), 15U);
}

TEST(MetricsText, ManyJobsAreCountedAndNotAllNamed) {
  StatusReport report{.program = "ddprund"};
  report.jobs.resize(kMostJobsMeasured + 5, {.id = "j", .state = "running"});
  const std::string text = metrics_text(report);
  EXPECT_TRUE(has_line(text, R"(ddprun_jobs{state="running"} 1005)"));
  std::istringstream lines(text);
  std::size_t rounds = 0;
  for (std::string line; std::getline(lines, line);) rounds += line.starts_with("ddprun_round{");
  EXPECT_EQ(rounds, kMostJobsMeasured);
}

}  // namespace
}  // namespace ddprun::http
