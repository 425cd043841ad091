// Words that others wrote: error files, the kernel's log, watchdog requests; and those we write:
// exit codes, events, notices, environments.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <string>

#include "agent/core/exit_code.h"
#include "agent/core/worker_variables.h"
#include "agent/monitors/timer_table.h"
#include "agent/processes/job_cookie.h"
#include "agent/processes/leftovers.h"
#include "agent/report/error_record.h"
#include "agent/report/events.h"
#include "agent/report/notices.h"
#include "agent/report/out_of_memory.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

TEST(ErrorRecord, ReadsWhatRecordWrites) {
  const auto record = parse_error_record(
      R"({"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "Trace", "timestamp": "1700000000"}}})");
  EXPECT_EQ(record, (ErrorRecord{"ValueError: x", "Trace", 1700000000}));
}

TEST(ErrorRecord, ReadsTheShortForm) {
  EXPECT_EQ(parse_error_record(R"({"message":"text","timestamp":1700000000})"),
            (ErrorRecord{"text", "", 1700000000}));
  EXPECT_EQ(parse_error_record(R"({"message":"text"})"), (ErrorRecord{"text", "", {}}));
}

TEST(ErrorRecord, AnythingElseIsNoRecord) {
  for (const char* text : {"", "garbage", "[]", "{}", "{\"message\"", "\xff\xfe"})
    EXPECT_EQ(parse_error_record(text), std::nullopt) << text;
  EXPECT_EQ(parse_error_record(R"({"message": {}})"), ErrorRecord{});
  EXPECT_EQ(parse_error_record(R"({"message": {"extraInfo": 3}})"), ErrorRecord{});
  EXPECT_EQ(parse_error_record("{\"message\":\"" + std::string(kMaxErrorRecordBytes, 'x') + "\"}"),
            std::nullopt);
}

TEST(ErrorRecord, WhatWeWriteCanBeReadAndGetsTheExitCode) {
  const ErrorRecord record{"died", "", 12};
  const std::string json = write_error_record(record);
  EXPECT_EQ(parse_error_record(json), record);
  EXPECT_EQ(nlohmann::json::parse(with_error_code(json, -9))["message"]["errorCode"], -9);
  EXPECT_EQ(with_error_code(R"({"message":"text"})", 1), R"({"message":"text"})");
}

TEST(OutOfMemory, IsFoundByItsPidWithLimitAndUsage) {
  const std::vector<std::string> lines = {
      "memory: usage 1kB, limit 2kB, failcnt 1",
      "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/b,task=sh,pid=77,uid=0",
      "memory: usage 65536kB, limit 131072kB, failcnt 116",
      "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/t1,"
      "task_memcg=/t1,task=python3,pid=30249,uid=0"};
  EXPECT_EQ(find_out_of_memory(lines, 30249), (OutOfMemory{"/t1", 128U << 20U, 64U << 20U}));
  EXPECT_EQ(describe(*find_out_of_memory(lines, 30249)),
            "out of memory in cgroup /t1: limit 128.0 MiB, peak 64.0 MiB");
  EXPECT_EQ(find_out_of_memory(lines, 3024), std::nullopt);
}

TEST(OutOfMemory, OfTheWholeHostHasNoLimit) {
  const auto found = find_out_of_memory(
      {"oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),global_oom,task=x,pid=5,uid=0"}, 5);
  EXPECT_EQ(found, OutOfMemory{});
}

TEST(ExitCode, IsTorchrunsUnlessDetailsAreAskedFor) {
  const rendezvous::Failure failed{.rank = 1, .exit_code = 7};
  const rendezvous::Failure killed{.rank = 1, .exit_code = -9};
  const ExitFacts plain{.workers_started = true};
  const ExitFacts detailed{.detailed = true, .workers_started = true};
  EXPECT_EQ(exit_code_of({.succeeded = true}, detailed), 0);
  EXPECT_EQ(exit_code_of({.cause = failed}, plain), 1);
  EXPECT_EQ(exit_code_of({.cause = failed}, detailed), 7);
  EXPECT_EQ(exit_code_of({.cause = killed}, detailed), 137);
  EXPECT_EQ(exit_code_of({.cause = failed},
                         {.detailed = true, .workers_started = true, .max_restarts = 2}),
            kExitBudgetSpent);
  EXPECT_EQ(exit_code_of({.signal = SIGTERM}, plain), 1);
  EXPECT_EQ(exit_code_of({.signal = SIGTERM}, {}), 143);
  EXPECT_EQ(exit_code_of({.signal = SIGTERM, .cause = failed}, detailed), kExitPreempted);
  EXPECT_EQ(exit_code_of({.session_error = Error(ErrorCode::kTimedOut, "x")}, detailed),
            kExitRendezvousFailed);
  EXPECT_EQ(exit_code_of({.launcher_failed = true, .cause = rendezvous::Failure{}}, detailed),
            kExitLauncherFailed);
  EXPECT_EQ(exit_code_of({.cause = rendezvous::Failure{}}, detailed), 1);
}

TEST(TimerTable, SetsMovesAndReleasesDeadlines) {
  TimerTable table;
  ASSERT_TRUE(
      table.apply(R"({"version":1,"pid":7,"scope_id":"a","expiration_time":100.5,"signal":9})"));
  ASSERT_TRUE(
      table.apply(R"({"version":1,"pid":7,"scope_id":"b","expiration_time":50,"signal":15})"));
  EXPECT_EQ(table.next(), 50);
  EXPECT_TRUE(table.take_expired(49.9).empty());
  ASSERT_TRUE(
      table.apply(R"({"version":1,"pid":7,"scope_id":"b","expiration_time":-1,"signal":15})"));
  EXPECT_EQ(table.next(), 100.5);
  EXPECT_EQ(table.take_expired(101), (std::vector<ExpiredTimer>{{7, "a", 9}}));
  EXPECT_EQ(table.next(), std::nullopt);
}

TEST(TimerTable, RefusesWhatIsNoRequest) {
  TimerTable table;
  for (const char* line :
       {"", "x", "[]", "{}", R"({"version":2,"pid":7,"expiration_time":1})",
        R"({"version":1,"pid":1,"expiration_time":1})", R"({"version":1,"pid":7})",
        R"({"version":1,"pid":-4,"expiration_time":1,"signal":9})",
        R"({"version":1,"pid":7,"expiration_time":1,"signal":999})"})
    EXPECT_FALSE(table.apply(line)) << line;
  EXPECT_EQ(table.next(), std::nullopt);
}

TEST(TimerTable, ForgetsADeadProcessAndIsBounded) {
  TimerTable table;
  for (std::size_t i = 0; i < kMaxTimers; ++i)
    ASSERT_TRUE(table.apply(R"({"version":1,"pid":7,"expiration_time":1,"scope_id":")" +
                            std::to_string(i) + "\"}"));
  EXPECT_FALSE(table.apply(R"({"version":1,"pid":8,"expiration_time":1})"));
  table.forget(7);
  EXPECT_EQ(table.next(), std::nullopt);
}

TEST(JobCookie, SaysWhoStartedTheJob) {
  const JobCookie own = make_job_cookie();
  EXPECT_EQ(parse_job_cookie(own.text()), own);
  EXPECT_EQ(parse_job_cookie(own.text() + "-123-abcdef"), own);
  EXPECT_FALSE(launcher_is_gone(own));
  JobCookie gone = own;
  ++gone.started;  // another process has the pid now
  EXPECT_TRUE(launcher_is_gone(gone));
  JobCookie unsure = gone;
  unsure.started = 0;
  EXPECT_FALSE(launcher_is_gone(unsure));
  gone.pid_namespace += 1;  // not ours to judge
  EXPECT_FALSE(launcher_is_gone(gone));
  for (const char* text : {"", "c0ffee", "1-2-3", "1-2-3-", "a-2-3-x", "1--3-x", "1-0-3-x"})
    EXPECT_EQ(parse_job_cookie(text), std::nullopt) << text;
}

class Leftovers : public testing::Test {
 protected:
  // 1 init, 10 a shell, 20 ddprun itself (`self`); the others are for the test.
  std::map<pid_t, Process> processes{{1, {0}}, {10, {1}}, {20, {10}}};
  const std::set<std::string> gone{"dead"};
  std::vector<pid_t> found() const { return orphans_of(processes, gone, 20); }
};

TEST_F(Leftovers, AreOrphansOfInitAndAllBelowThem) {
  processes[30] = {1, "dead"};
  processes[31] = {30, "dead"};
  processes[32] = {1, "alive"};
  processes[33] = {1};
  EXPECT_EQ(found(), (std::vector<pid_t>{30, 31}));
}

TEST_F(Leftovers, AreNotWhatALivingParentStartedWithAnOldEnvironment) {
  processes[40] = {1};           // a daemon, told by a worker to start something
  processes[41] = {40, "dead"};  // with that worker's environment
  processes[42] = {41, "dead"};
  EXPECT_EQ(found(), std::vector<pid_t>{});
}

TEST_F(Leftovers, AreNeverUsNorWhatSharesOurEnvironment) {
  processes[10] = {1, "dead"};  // a shell that took over a worker's environment
  processes[20] = {10, "dead"};
  processes[50] = {1, "dead"};  // and what it left in the background
  EXPECT_EQ(found(), std::vector<pid_t>{});
}

TEST_F(Leftovers, AListReadWhileProcessesMoveMayHoldACircle) {
  processes[60] = {61, "dead"};
  processes[61] = {60, "dead"};
  EXPECT_EQ(found(), std::vector<pid_t>{});
}

TEST(Notices, AreFewAndOnlyOnATerminal) {
  const rendezvous::Round round{
      .world_size = 4, .seats = {{}, {}}, .master_addr = "10.0.0.1", .master_port = 99};
  Notices terminal(false, true);
  EXPECT_EQ(terminal.started(round, "/logs"),
            "ddprun: 4 workers on 2 nodes, master 10.0.0.1:99\nddprun: logs in /logs\n");
  EXPECT_EQ(terminal.started(round, "/logs"), "");
  int lines = 2;
  for (int i = 1; i <= 20; ++i)
    lines +=
        terminal.restarting({.message = "rank 1 died"}, i, {.max_restarts = 20}).empty() ? 0 : 1;
  EXPECT_EQ(lines, kOwnLines);
  Notices batch(false, false);
  EXPECT_EQ(batch.started(round, "/logs"), "");
  EXPECT_EQ(batch.waiting("h:1", 3s, 60s), "");
  EXPECT_EQ(batch.restarting({.message = "rank 1 died"}, 1, {.max_restarts = 3}),
            "ddprun: rank 1 died; restart 1 of 3\n");
  EXPECT_EQ(batch.restarting({.message = "rank 1 died"}, 4, {.max_restarts = 3, .window = 60s}),
            "ddprun: rank 1 died; restart 4\n");
  Notices quiet(true, true);
  EXPECT_EQ(
      quiet.started(round, "/logs") + quiet.restarting({}, 1, {}) + quiet.waiting("h", 1s, 2s), "");
}

TEST(Notices, TheLineOfWaitingIsEndedOnce) {
  Notices terminal(false, true);
  EXPECT_EQ(terminal.waited(), "");
  EXPECT_EQ(terminal.waiting("h:1", 3s, 60s),
            "\rddprun: waiting for the other nodes at h:1 (3 s of 60 s)");
  EXPECT_EQ(terminal.waited(), "\n");
  EXPECT_EQ(terminal.waited(), "");
}

AgentConfig config() {
  AgentConfig config;
  config.worker_count = 2;
  config.base_env = {"PATH=/bin", "RANK=inherited", "CUDA_VISIBLE_DEVICES=7,5"};
  return config;
}

rendezvous::Round two_seats() {
  rendezvous::Round round{.restart_count = 3, .world_size = 3, .master_addr = "m"};
  round.seats = {{.local_world_size = 1}, {.local_world_size = 2, .first_rank = 1}};
  return round;
}

bool holds(const std::vector<std::string>& env, const std::string& entry) {
  return std::count(env.begin(), env.end(), entry) == 1;
}

TEST(WorkerVariables, OverrideWhatIsInheritedOnce) {
  const auto env = worker_variables(config(), two_seats(), 1,
                                    {.seat = 1, .interface = "eth0", .timer_file = "/t"});
  for (const char* entry : {"PATH=/bin", "RANK=2", "LOCAL_RANK=1", "WORLD_SIZE=3", "GROUP_RANK=1",
                            "CUDA_VISIBLE_DEVICES=7,5", "TORCHELASTIC_RESTART_COUNT=3",
                            "GLOO_SOCKET_IFNAME=eth0", "TORCHELASTIC_TIMER_FILE=/t",
                            "TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT"})
    EXPECT_TRUE(holds(env, entry)) << entry;
}

TEST(WorkerVariables, AVirtualLocalRankIsZeroWithOneDevice) {
  AgentConfig virtual_ranks = config();
  virtual_ranks.virtual_devices = {"7", "5"};
  const auto env = worker_variables(virtual_ranks, two_seats(), 1, {.seat = 1});
  EXPECT_TRUE(holds(env, "LOCAL_RANK=0"));
  EXPECT_TRUE(holds(env, "RANK=2"));
  EXPECT_TRUE(holds(env, "CUDA_VISIBLE_DEVICES=5"));
  virtual_ranks.base_env.emplace_back("HIP_VISIBLE_DEVICES=7,5");
  EXPECT_TRUE(
      holds(worker_variables(virtual_ranks, two_seats(), 0, {.seat = 1}), "HIP_VISIBLE_DEVICES=7"));
}

TEST(Events, AreTorchrunsLines) {
  const WorkerExit exit{.local_rank = 1, .pid = 5, .exit_code = 3};
  const auto line = nlohmann::json::parse(event_line(
      {.state = EventState::kFailed, .hostname = "h", .worker = exit, .rank = 4}, config(), 2));
  EXPECT_EQ(line["name"], "torchelastic.worker.status.FAILED");
  EXPECT_EQ(line["source"], "WORKER");
  EXPECT_EQ(line["timestamp"], 0);
  EXPECT_EQ(line["metadata"]["global_rank"], 4);
  EXPECT_EQ(line["metadata"]["state"], "FAILED");
  EXPECT_EQ(line["metadata"]["agent_restarts"], 2);
}

TEST(HandledSignals, AlwaysHoldThoseThatEndAProgram) {
  const auto signals = handled_signals({.stop = {SIGALRM, SIGTERM}, .map = {{SIGWINCH, SIGTERM}}});
  for (const int signo : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGWINCH})
    EXPECT_EQ(std::count(signals.begin(), signals.end(), signo), 1) << signo;
}

TEST(SignalMeaning, IsTheUsersWordFirst) {
  const SignalPlan usual;
  EXPECT_TRUE(meaning_of(usual, SIGUSR1).is_message);
  EXPECT_FALSE(meaning_of(usual, SIGTERM).is_message);
  const SignalPlan listed{.stop = {SIGUSR1}};
  EXPECT_FALSE(meaning_of(listed, SIGUSR1).is_message);
  EXPECT_TRUE(meaning_of(listed, SIGUSR2).is_message);
  EXPECT_FALSE(meaning_of(listed, SIGTERM).is_message);  // a launcher never dies of it silently
  const SignalPlan mapped{.map = {{SIGUSR1, SIGTERM}, {SIGTERM, SIGUSR2}}};
  EXPECT_EQ(meaning_of(mapped, SIGUSR1).signo, SIGTERM);
  EXPECT_FALSE(meaning_of(mapped, SIGUSR1).is_message);
  EXPECT_TRUE(meaning_of(mapped, SIGTERM).is_message);
  const SignalPlan told{.map = {{SIGUSR1, SIGWINCH}}};
  EXPECT_TRUE(meaning_of(told, SIGUSR1).is_message);
}

}  // namespace
}  // namespace ddprun::agent
