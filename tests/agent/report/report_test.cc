// The failure report: who is to blame, what is told, and that it stays on one lines.
#include "agent/report/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <nlohmann/json.hpp>
#include <string>

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using SystemTime = std::chrono::system_clock::time_point;

constexpr SystemTime kDeath{1'700'000'000s};

ReportedWorker worker(int rank, int exit_code, bool stopped = false) {
  ReportedWorker one;
  one.worker.exit = {.local_rank = rank, .pid = 1000 + rank, .exit_code = exit_code};
  one.worker.started = Time(1s);
  one.worker.ended = Time(3500ms);
  one.worker.stopped_by_us = stopped;
  one.rank = rank;
  one.when = kDeath;
  return one;
}

ReportFacts facts(std::vector<ReportedWorker> workers) {
  return {.entry = "train.py", .hostname = "h", .workers = std::move(workers)};
}

std::size_t lines_of(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST(Report, NamesTheFirstFailureAsTheRootCauseAndTheStoppedOnesInOneLine) {
  const std::string report = failure_report(
      facts({worker(1, 7), worker(0, -15, true), worker(2, -15, true), worker(3, -15, true)}));
  EXPECT_TRUE(has(report, "\ntrain.py FAILED\n"));
  const auto cause = report.find("Root Cause (first observed failure):\n[0]:\n");
  ASSERT_NE(cause, std::string::npos);
  const std::string below = report.substr(cause);
  EXPECT_TRUE(has(below, "  host      : h\n"));
  EXPECT_TRUE(has(below, "  rank      : 1 (local_rank: 1)\n"));
  EXPECT_TRUE(has(below, "  exitcode  : 7 (pid: 1001)\n"));
  EXPECT_TRUE(has(below, "  error_file: <N/A>\n"));
  EXPECT_TRUE(has(below, "run time  : 2.500 s in attempt 1 of 1, node rank 0, role default"));
  EXPECT_TRUE(has(below, "Stopped by ddprun after that: ranks 0, 2-3 (exitcode -15)\n"));
  EXPECT_TRUE(has(report, "  <NO_OTHER_FAILURES>\n"));
}

TEST(Report, NamesSignalsAndTheEvidence) {
  ReportFacts killed = facts({worker(0, -9)});
  killed.workers[0].evidence = "out of memory in cgroup /a";
  const std::string report = failure_report(killed);
  EXPECT_TRUE(has(report, "exitcode  : -9 (pid: 1000) (SIGKILL)"));
  EXPECT_TRUE(has(report, "Signal 9 (SIGKILL) received by PID 1000: out of memory in cgroup /a\n"));
}

TEST(Report, NamesMemoryWhereAChildWasKilled) {
  for (const int exit_code : {1, 137, -6}) {
    ReportFacts failed = facts({worker(0, exit_code)});
    failed.workers[0].evidence = "the kernel killed a process beside it";
    const std::string report = failure_report(failed);
    EXPECT_TRUE(has(report, "  memory    : the kernel killed a process beside it\n"));
    EXPECT_LT(report.find("memory    :"), report.find("traceback :"));
  }
}

TEST(Report, SaysWhyDdprunEndedAWorker) {
  ReportFacts aborted = facts({worker(0, -6)});
  aborted.workers[0].worker.exit.ended_for = "stands still";
  aborted.workers[0].evidence = "ddprun sent it, since the worker stands still";
  const std::string report = failure_report(aborted);
  EXPECT_TRUE(has(report, "Signal 6 (SIGABRT) received by PID 1000: ddprun sent it, since"));
  EXPECT_FALSE(has(report, "  memory    :"));
  EXPECT_TRUE(has(reason_on_record(aborted.workers[0]), "stands still"));

  aborted.workers[0].worker.exit.exit_code = 1;  // it caught the signal
  aborted.workers[0].evidence = "ddprun ended the worker, since the worker stands still";
  const std::string caught = failure_report(aborted);
  EXPECT_TRUE(
      has(caught, "  ended     : ddprun ended the worker, since the worker stands still\n"));
  EXPECT_FALSE(has(caught, "  memory    :"));
  EXPECT_TRUE(has(reason_on_record(aborted.workers[0]), "exited with code 1: ddprun ended"));
}

TEST(Report, SaysWhatCanBeMissingWhenAProgramCannotBeStarted) {
  ReportFacts one = facts({worker(0, 127)});
  one.workers[0].worker.exit.exec_errno = ENOENT;
  EXPECT_TRUE(has(failure_report(one),
                  "could not be started: No such file or directory (itself, its #! interpreter or "
                  "loader)\n"));
  one.workers[0].worker.exit.exec_errno = EACCES;
  EXPECT_TRUE(has(failure_report(one), "could not be started: Permission denied\n"));
}

TEST(Report, ListsFurtherFailuresApart) {
  const std::string report = failure_report(facts({worker(2, 1), worker(0, 4)}));
  EXPECT_LT(report.find("[1]: rank 0 (local_rank: 0) exitcode: 4"), report.find("Root Cause"));
  EXPECT_GT(report.find("rank      : 2"), report.find("Root Cause"));
}

TEST(Report, IsEmptyWhenOurWorkersWereOnlyStopped) {
  EXPECT_EQ(failure_report(facts({worker(0, -15, true)})), "");
}

TEST(Report, QuotesTheLastTwentyLinesOfStderrAndStaysOnOneScreen) {
  ReportFacts loud = facts({worker(1, 7), worker(0, -15, true)});
  for (int i = 0; i < 40; ++i)
    loud.workers[0].stderr_end.push_back("line " + std::to_string(i) + ".");
  const std::string report = failure_report(loud);
  EXPECT_LE(lines_of(report), kReportLines);
  EXPECT_FALSE(has(report, "line 19."));
  for (int i = 20; i < 40; ++i) EXPECT_TRUE(has(report, "| line " + std::to_string(i) + "."));
  for (const char* kept : {"train.py FAILED", "Root Cause", "time  ", "host  ", "rank  ",
                           "exitcode  : 7", "traceback :", "Stopped by ddprun"})
    EXPECT_TRUE(has(report, kept)) << kept;
}

TEST(Report, AnythingAtOnceStaysOnOneScreen) {
  std::vector<ReportedWorker> many = {worker(0, 1)};
  for (int rank = 1; rank < 20; ++rank) many.push_back(worker(rank, rank % 2 == 0 ? 1 : -15));
  for (int rank = 20; rank < 40; ++rank) many.push_back(worker(rank, -15, true));
  many[0].record = ErrorRecord{.message = "m"};
  for (int i = 0; i < 100; ++i) many[0].record->trace += "trace " + std::to_string(i) + "\n";
  many[0].stderr_end.assign(100, std::string(5000, 'x'));
  const std::string report = failure_report(facts(many));
  EXPECT_LE(lines_of(report), kReportLines);
  EXPECT_TRUE(has(report, "… and 15 more"));
  EXPECT_TRUE(has(report, "traceback : trace 0\n"));
  EXPECT_TRUE(has(report, "trace 99\n"));
  EXPECT_LT(report.size(), kReportLines * (kQuotedLineBytes + 100));
}

TEST(Report, ShowsARecordedTracebackMessageAndTime) {
  ReportFacts recorded = facts({worker(0, 5)});
  recorded.workers[0].record = ErrorRecord{"text", "", 1'600'000'000};
  const std::string report = failure_report(recorded);
  EXPECT_TRUE(has(report, "traceback : text\n"));
  EXPECT_TRUE(has(report, "time      : 2020-09-1"));
  recorded.workers[0].record->trace = "Traceback:\n  File";
  EXPECT_TRUE(has(failure_report(recorded), "traceback : Traceback:\n    File\n"));
}

TEST(Report, TellsATracebackOnce) {
  ReportFacts recorded = facts({worker(0, 1)});
  recorded.workers[0].record = ErrorRecord{"E", "Traceback (most recent call last):\nE: x", {}};
  recorded.workers[0].stderr_end = {"epoch 3", "Traceback (most recent call last):", "E: x"};
  const std::string report = failure_report(recorded);
  EXPECT_TRUE(has(report, "| epoch 3\n"));
  EXPECT_FALSE(has(report, "| E: x"));
  recorded.workers[0].record.reset();
  EXPECT_TRUE(has(failure_report(recorded), "| E: x"));
}

TEST(Report, KeepsControlCharactersOfAWorkerOffTheScreen) {
  ReportFacts loud = facts({worker(0, 1)});
  loud.workers[0].stderr_end = {"\x1b[2Jgone", "a\x7f\u009b2Jb\u00a0c\td"};
  loud.entry = "evil\n\x9b.py";
  loud.role = "r\x1b[1m";
  const std::string report = failure_report(loud);
  for (const char* unwanted : {"\x1b", "\x7f", "\u009b", "\x9b.py"})
    EXPECT_FALSE(has(report, unwanted));
  EXPECT_TRUE(has(report, "| a  2Jb\u00a0c\td\n"));
  EXPECT_TRUE(has(report, "\nevil \uFFFD.py FAILED\n"));
}

TEST(Report, LeavesNoLineOfAWorkerThatLooksLikeItsOwn) {
  ReportFacts loud = facts({worker(0, 1)});
  loud.workers[0].record = ErrorRecord{
      "E", "Traceback:\nexitcode  : 0 (pid: 1)\nhost      : evil\n[1]: rank 7\n\u2028E\u202e", {}};
  loud.hostname = "n1\nroot cause: evil";
  const std::string report = failure_report(loud);
  EXPECT_TRUE(has(report, "\n      exitcode  : 0 (pid: 1)\n"));
  EXPECT_FALSE(has(report, "\n  exitcode  : 0"));
  EXPECT_FALSE(has(report, "\n  host      : evil"));
  EXPECT_FALSE(has(report, "\n  [1]: rank 7"));
  EXPECT_FALSE(has(report, "\nroot cause"));
  EXPECT_FALSE(has(report, "\u202e"));
  EXPECT_FALSE(has(report, "\u2028"));
}

TEST(Report, TellsAnEndingInOneLineWhateverAPeerSaid) {
  Ending ending;
  ending.session_error = Error(ErrorCode::kRejected, "no\n[rank0]: \x1b[31mfalse\u009b");
  EXPECT_EQ(ending_text(ending), "no [rank0]:  [31mfalse ");
  ending.session_error.reset();
  ending.cause = rendezvous::Failure{.message = "lost\r\nfalse"};
  EXPECT_EQ(ending_text(ending), "the job failed: lost  false");
  ending.stopped = true;
  EXPECT_EQ(ending_text(ending), "lost  false; the workers were stopped");
}

TEST(Report, CutsALongLineBetweenCharacters) {
  ReportFacts loud = facts({worker(0, 1)});
  for (std::size_t ascii = kQuotedLineBytes - 4; ascii <= kQuotedLineBytes; ++ascii) {
    const std::string head(ascii, 'x');
    loud.workers[0].stderr_end = {head + "\U0001F600y"};
    const bool fits = ascii == kQuotedLineBytes - 4;
    EXPECT_TRUE(has(failure_report(loud), head + (fits ? "\U0001F600…\n" : "…\n"))) << ascii;
  }
}

TEST(Report, CountsNoAttemptsBeyondTheBudget) {
  ReportFacts windowed = facts({worker(0, 1)});
  windowed.max_restarts = 1;
  windowed.restarts = 1;
  EXPECT_TRUE(has(failure_report(windowed), " in attempt 2 of 2, "));
  windowed.restarts = 3;
  EXPECT_TRUE(has(failure_report(windowed), " in attempt 4, "));
}

TEST(RootCause, IsWhoRecordedAnErrorClearlyBeforeTheFirstDeath) {
  ReportFacts facts_ = facts({worker(1, 3), worker(0, -15, true)});
  facts_.workers[1].record = ErrorRecord{"early"};
  facts_.workers[1].recorded_at = kDeath - 100ms;
  EXPECT_EQ(root_cause(facts_), 1U);
  facts_.workers[1].recorded_at = kDeath - 2ms;  // a victim's, or the file system's slow clock
  EXPECT_EQ(root_cause(facts_), 0U);
}

TEST(RootCause, AFileThatIsNoRecordProvesNothing) {
  ReportFacts facts_ = facts({worker(1, 3), worker(0, -15, true)});
  facts_.workers[1].recorded_at = kDeath - 1s;
  EXPECT_EQ(root_cause(facts_), 0U);
}

TEST(ErrorReport, TellsTheFactsAsJson) {
  ReportFacts failed = facts({worker(1, -9), worker(0, -15, true)});
  failed.workers[0].evidence = "why";
  failed.workers[0].stderr_end = {"a", "b\xff", "\xc3\xa9"};
  const std::string text = error_report_json(failed, {}, 1);
  EXPECT_EQ(std::count_if(text.begin(), text.end(), [](char c) { return c < 0; }), 0) << "ASCII";
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["succeeded"], false);
  EXPECT_EQ(json["exit_code"], 1);
  EXPECT_EQ(json["root_cause"]["rank"], 1);
  EXPECT_EQ(json["root_cause"]["signal"], "SIGKILL");
  EXPECT_EQ(json["root_cause"]["evidence"], "why");
  EXPECT_EQ(json["root_cause"]["time"], "2023-11-14T22:13:20.000Z");
  EXPECT_EQ(json["root_cause"]["stderr_end"].size(), 3U);
  EXPECT_EQ(json["root_cause"]["stderr_end"][2], "\xc3\xa9");
  EXPECT_EQ(json["other_workers"][0]["stopped_by_ddprun"], true);
}

TEST(ErrorReport, NamesACauseOnAnotherNode) {
  const Ending ending{
      .cause = rendezvous::Failure{.hostname = "b", .rank = 3, .local_rank = 1, .exit_code = 4}};
  const auto json = nlohmann::json::parse(error_report_json(facts({}), ending, 1));
  EXPECT_EQ(json["ended_by"], "worker");
  EXPECT_EQ(json["root_cause"]["hostname"], "b");
  EXPECT_EQ(json["root_cause"]["exit_code"], 4);
}

TEST(ReasonOnRecord, IsNeverOnlyAHintToLookElsewhere) {
  ReportedWorker plain{.worker = {.exit = {.local_rank = 1, .pid = 7, .exit_code = 3}}, .rank = 5};
  EXPECT_EQ(reason_on_record(plain), "rank 5 (local rank 1, pid 7) exited with code 3");
  plain.record = ErrorRecord{.message = "its own words"};
  EXPECT_EQ(reason_on_record(plain), "its own words");
}

TEST(Report, ShowsNoPidOfAWorkerThatWasNeverStarted) {
  ReportedWorker never{
      .worker = {.exit = {.exit_code = 1, .start_error = "make a process: no memory"}}};
  const std::string text = failure_report(facts({never}));
  EXPECT_NE(text.find("exitcode  : 1 (never started)\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("pid"), std::string::npos) << text;
  const auto json = nlohmann::json::parse(error_report_json(facts({never}), {}, 1));
  EXPECT_TRUE(json["root_cause"]["pid"].is_null());
}

TEST(EndingText, SaysWhyTheJobEnded) {
  EXPECT_EQ(ending_text({.signal = SIGTERM}), "received SIGTERM; the workers were stopped");
  EXPECT_EQ(ending_text({.session_error = Error(ErrorCode::kTimedOut, "nobody answered")}),
            "nobody answered");
  EXPECT_EQ(ending_text({.cause = rendezvous::Failure{.message = "rank 3 died"}}),
            "the job failed: rank 3 died");
}

}  // namespace
}  // namespace ddprun::agent
