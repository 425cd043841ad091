// Reports of runs, made of the lines that nodes wrote.
#include "launcher/report/run_report.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "launcher/report/read_histories.h"
#include "launcher/report/report_page.h"
#include "launcher/report/report_text.h"

namespace ddprun::launcher {
namespace {

constexpr double kBegin = 1'700'000'000;

// Lines of one node's history. Seconds count from kBegin by the node's clock.
class Written {
 public:
  explicit Written(std::string hostname, double clock = 0)
      : hostname_(std::move(hostname)), clock_(clock) {}

  Written& round(int number, double at, double waited = 0) {
    number_ = number;
    return line(at, fmt::format(R"("event": "round", "run_id": "job", "hostname": "{}",
        "nodes": 2, "workers": 2, "first_rank": 0, "world_size": 4, "waited": {})",
                                hostname_, waited));
  }
  Written& steps(int count, double first, double last) {
    return line(last,
                fmt::format(R"("event": "steps", "steps": {}, "first_step": {}, "last_step": {})",
                            count, place(first), place(last)));
  }
  Written& broken(double at, const std::string& kind, const std::string& host, int rank = 1) {
    return line(at, fmt::format(R"("event": "broken", "kind": "{}", "hostname": "{}", "rank": {},
        "text": "killed by SIGKILL")",
                                kind, host, rank));
  }
  Written& still(double at) {
    return line(at, R"("event": "standstill", "sentence": "rank 1 does nothing <b>")");
  }
  Written& went_on(double at, double after) {
    return line(at, fmt::format(R"("event": "went_on", "after": {})", after));
  }
  Written& slow(double at) {
    return line(at, R"("event": "stragglers", "sentence": "rank 1 is slower <b>")");
  }
  Written& over(double at) { return line(at, R"("event": "round_end")"); }
  Written& end(double at, const std::string& kind = "success") {
    return line(at, fmt::format(R"("event": "job_end", "kind": "{}", "text": "")", kind));
  }
  NodeHistory read() const {
    NodeHistory history = parse_history(text_);
    history.folder = "/logs/" + hostname_;
    return history;
  }
  std::string text_;

 private:
  std::string place(double at) const { return fmt::format("{:.3f}", kBegin + at + clock_); }
  Written& line(double at, std::string fields) {
    std::erase(fields, '\n');
    text_ += fmt::format("{{\"time\": {}, \"round\": {}, {}}}\n", place(at), number_, fields);
    return *this;
  }

  std::string hostname_;
  double clock_;
  int number_ = 0;
};

double seconds_in(const RunReport& report, const std::string& what) {
  for (const TimeShare& one : report.time)
    if (one.what == what) return one.seconds;
  return 0;
}

double sum(const RunReport& report) {
  double all = 0;
  for (const TimeShare& one : report.time) all += one.seconds;
  return all;
}

// It waits 2 s for nodes, and steps begin 8 s later. They take 1 s each. 100 are done, then 10 s
// are lost. Another 50 follow, and 3 s more.
RunReport two_rounds() {
  Written written("a");
  written.round(1, 2, 2).steps(100, 11, 110).broken(112, "worker_failed", "a").over(113);
  return make_report({written.round(2, 114).steps(50, 121, 170).over(172).end(173).read()});
}

TEST(RunReport, EverySecondIsOfSomething) {
  const RunReport report = two_rounds();
  EXPECT_NEAR(report.seconds(), 173, 1e-3);
  EXPECT_NEAR(seconds_in(report, "waiting for nodes"), 2, 1e-3);
  EXPECT_NEAR(seconds_in(report, "start"), 8, 1e-3);
  EXPECT_NEAR(seconds_in(report, "a worker failed"), 10, 1e-3);
  EXPECT_NEAR(seconds_in(report, "after the last step"), 3, 1e-3);
  EXPECT_NEAR(report.step_seconds, 150, 1e-3);
  EXPECT_NEAR(sum(report), report.seconds(), 1e-3);
  EXPECT_EQ(report.steps, 150);
  EXPECT_TRUE(report.succeeded);
  EXPECT_EQ(report.rounds[0].why_ended, "rank 1 on a: killed by SIGKILL");
}

TEST(RunReport, ClocksAreAlignedByRounds) {
  Written first("a");
  Written second("b", 3600);  // an hour ahead
  for (Written* one : {&first, &second})
    one->round(1, 0).steps(10, 1, 10).broken(11, "node_lost", "b", -1).over(12);
  for (Written* one : {&first, &second}) one->round(2, 20).steps(10, 21, 30).over(31);
  first.round(3, 40).over(41).end(50);
  second.end(45);
  const RunReport report = make_report({second.read(), first.read()});
  EXPECT_NEAR(report.seconds(), 50, 1e-3);
  ASSERT_EQ(report.nodes.size(), 2U);
  EXPECT_EQ(report.nodes[1].hostname, "b");
  EXPECT_NEAR(report.nodes[1].clock_ahead, 3600, 1e-3);
  EXPECT_NEAR(report.nodes[1].spans[0].began, kBegin, 1e-3);
  EXPECT_EQ(report.nodes[1].blamed, 1);
  EXPECT_EQ(report.rounds[0].present, 2);
  EXPECT_EQ(report.rounds[2].present, 1);
  EXPECT_NEAR(sum(report), report.seconds(), 1e-3);
}

TEST(RunReport, AStandstillThatWentOnIsNoStep) {
  Written written("a");
  written.round(1, 0).still(60).went_on(95, 40).steps(61, 10, 110).over(111).end(111);
  const RunReport report = make_report({written.read()});
  EXPECT_NEAR(seconds_in(report, "standstills that went on"), 40, 1e-3);
  EXPECT_NEAR(report.step_seconds, 61, 0.01);
  EXPECT_EQ(report.rounds[0].fact.standstills.size(), 1U);
}

TEST(RunReport, StragglersAreToldOnceForAllNodes) {
  Written first("a");
  Written second("b", 100);
  first.round(1, 0).steps(50, 1, 50).slow(20).slow(60).over(80);
  second.round(1, 0).steps(50, 1, 50).slow(20.5).over(80);
  const RunReport report = make_report({first.end(80).read(), second.end(80).read()});
  EXPECT_EQ(report.rounds[0].fact.stragglers.size(), 2U);
  EXPECT_NE(report_text(report).find("rank 1 is slower <b>"), std::string::npos);
  EXPECT_NE(report_page(report).find("rank 1 is slower &lt;b&gt;"), std::string::npos);
  const auto json = nlohmann::json::parse(report_json(report));
  EXPECT_EQ(json["rounds"][0]["stragglers"][1]["sentence"], "rank 1 is slower <b>");
}

TEST(RunReport, AJobThatWasKilledHasNoEnd) {
  Written written("a");
  const RunReport report = make_report({written.round(1, 0).steps(10, 1, 10).read()});
  EXPECT_FALSE(report.has_end);
  EXPECT_FALSE(report.succeeded);
  EXPECT_NEAR(report.seconds(), 10, 1e-3);
  EXPECT_EQ(report.end_text, "no end is written: it runs still, or was killed");
}

TEST(RunReport, ANodeThatFailsTwiceRecurs) {
  Written written("a");
  for (int number = 1; number <= 3; ++number) {
    const double at = number * 100.0;
    written.round(number, at).steps(10, at + 1, at + 10);
    if (number < 3) written.broken(at + 11, "standstill", "a").over(at + 12);
  }
  const RunReport report = make_report({written.over(320).end(321).read()});
  EXPECT_EQ(report.nodes[0].blamed, 2);
  EXPECT_EQ(report.time[0].what, "a rank stood still");
  EXPECT_NE(report_text(report).find("2, recurs"), std::string::npos);
  EXPECT_NEAR(seconds_in(report, "a rank stood still"), 180, 1e-3);
}

TEST(RunReport, WithoutStepsNothingIsEffective) {
  Written written("a");
  const RunReport report = make_report({written.round(1, 0).over(10).end(11, "signal").read()});
  EXPECT_FALSE(report.counts_steps());
  EXPECT_NEAR(seconds_in(report, "without counted steps"), 10, 1e-3);
  EXPECT_NEAR(sum(report), 11, 1e-3);
  EXPECT_NE(report_text(report).find("effective time unknown"), std::string::npos);
  EXPECT_TRUE(nlohmann::json::parse(report_json(report))["effective"].is_null());
}

TEST(RunReport, HostileLinesAreSkipped) {
  const NodeHistory history = parse_history(
      "nonsense\n[1]\n{\"time\": \"x\"}\n{\"event\": \"steps\"}\n"
      "{\"time\": 1e300, \"event\": \"round\", \"round\": 1e300, \"nodes\": -1e9}\n"
      "{\"time\": 5, \"event\": \"round\", \"round\": 1}\n"
      "{\"time\": 6, \"event\": 7, \"round\": 1}\n");
  ASSERT_EQ(history.rounds.size(), 1U) << "rounds only grow";
  EXPECT_FALSE(report_text(make_report({history})).empty());
  EXPECT_TRUE(parse_history("").rounds.empty());
}

TEST(RunReport, TheTextHasTheNumbers) {
  const std::string text = report_text(two_rounds());
  EXPECT_TRUE(
      text.starts_with("job: 1 node, 2 rounds, 0:02:53: ended well\n"
                       "effective time 86.7 %: 0:02:30 of 0:02:53 in 150 steps\n"))
      << text;
  EXPECT_NE(text.find("10.0 s   5.8 %   1      a worker failed\n"), std::string::npos) << text;
}

TEST(RunReport, ThePageHoldsHostileTextsInside) {
  Written written("<script>alert(1)</script>&\\\"'");
  written.round(1, 0).still(3).broken(5, "worker_failed", "<img src=x>").over(6);
  const std::string page = report_page(make_report({written.end(7, "worker_failed").read()}));
  for (const char* unwanted : {"<script", "<img", "<b>", "http:", "https:", "url("})
    EXPECT_EQ(page.find(unwanted), std::string::npos) << unwanted;
  EXPECT_NE(page.find("&lt;script&gt;"), std::string::npos);
  EXPECT_EQ(escaped("\"'&\x1b\xff"), "&quot;&#39;&amp; \xEF\xBF\xBD");
}

TEST(RunReport, TheNewestJobOfAFolderIsMeant) {
  Written old_run("a");
  Written new_run("a");
  Written its_peer("b");
  old_run.round(1, 0).over(10).end(10);
  new_run.round(1, 100).over(110).end(110);
  its_peer.round(1, 101).over(111).end(111);
  NodeHistory old_one = old_run.read();
  old_one.folder = "/logs/old";
  const auto found = of_newest_job({old_one, new_run.read(), its_peer.read()});
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].folder, "/logs/a");
  EXPECT_TRUE(of_newest_job({}).empty());
}

}  // namespace
}  // namespace ddprun::launcher
