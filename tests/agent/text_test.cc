// The agent's pure text: the failure report.
#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "agent/report.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

ReportedWorker worker(int rank, int exit_code, bool stopped) {
  ReportedWorker one;
  one.worker.exit = {.local_rank = rank, .pid = 1000 + rank, .exit_code = exit_code};
  one.worker.started = Time(1s);
  one.worker.ended = Time(3500ms);
  one.worker.stopped_by_us = stopped;
  one.rank = rank;
  return one;
}

TEST(Report, NamesTheFirstFailureAsTheRootCauseAndTheStoppedOnesInOneLine) {
  const std::string report =
      failure_report({.entry = "train.py",
                      .hostname = "h",
                      .workers = {worker(1, 7, false), worker(0, -15, true)}});
  EXPECT_NE(report.find("train.py FAILED"), std::string::npos);
  const auto cause = report.find("Root Cause (first observed failure):\n[0]:\n");
  ASSERT_NE(cause, std::string::npos);
  EXPECT_NE(report.find("rank      : 1 (local_rank: 1)", cause), std::string::npos);
  EXPECT_NE(report.find("exitcode  : 7 (pid: 1001)", cause), std::string::npos);
  EXPECT_NE(report.find("run time  : 2.500 s", cause), std::string::npos);
  EXPECT_NE(report.find("Stopped by ddprun after that: rank 0 (exitcode -15)", cause),
            std::string::npos);
  EXPECT_NE(report.find("<NO_OTHER_FAILURES>"), std::string::npos);
}

TEST(Report, NamesSignals) {
  const std::string report = failure_report({.entry = "x", .workers = {worker(0, -9, false)}});
  EXPECT_NE(report.find("exitcode  : -9 (pid: 1000) (SIGKILL)"), std::string::npos);
  EXPECT_NE(report.find("Signal 9 (SIGKILL) received by PID 1000"), std::string::npos);
}

TEST(Report, ListsFurtherFailuresApart) {
  const std::string report =
      failure_report({.entry = "x", .workers = {worker(2, 1, false), worker(0, 4, false)}});
  EXPECT_LT(report.find("rank      : 0"), report.find("Root Cause"));
  EXPECT_GT(report.find("rank      : 2"), report.find("Root Cause"));
}

TEST(Report, IsEmptyWhenOurWorkersWereOnlyStopped) {
  EXPECT_EQ(failure_report({.entry = "x", .workers = {worker(0, -15, true)}}), "");
}

TEST(EndingLine, SaysWhyTheJobEnded) {
  EXPECT_EQ(ending_line({.signal = SIGTERM}),
            "ddprun: received SIGTERM; the workers were stopped\n");
  EXPECT_EQ(ending_line({.link_error = Error(ErrorCode::kTimedOut, "nobody answered")}),
            "ddprun: nobody answered\n");
  EXPECT_EQ(ending_line({.cause = rendezvous::Failure{.message = "rank 3 died"}}),
            "ddprun: the job failed: rank 3 died\n");
}

}  // namespace
}  // namespace ddprun::agent
