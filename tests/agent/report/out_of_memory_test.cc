// Why a worker got a SIGKILL, by which sources can be read.
#include "agent/report/out_of_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace ddprun::agent {
namespace {

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

TEST_F(FolderTest, TheCgroupIsNamedWhoseLimitWasMet) {
  const auto set = [](const std::filesystem::path& place, const char* limit, const char* peak) {
    std::filesystem::create_directories(place);
    std::ofstream(place / "memory.limit_in_bytes") << limit;
    std::ofstream(place / "memory.max_usage_in_bytes") << peak;
  };
  const char* const no_limit = "9223372036854771712";
  const auto exhausted = [&] {
    return exhausted_cgroup({(folder / "job/step/task").string(), false}, "/job/step/task");
  };
  set(folder, no_limit, "9000");
  set(folder / "job", no_limit, "1000");
  set(folder / "job/step", no_limit, "1000");
  set(folder / "job/step/task", no_limit, "1000");
  EXPECT_EQ(exhausted(), OutOfMemory{"/job/step/task"});
  set(folder / "job/step", "1000", "1000");
  EXPECT_EQ(exhausted(), (OutOfMemory{"/job/step", 1000, 1000})) << "a task has no limit";
  set(folder / "job", "1000", "1000");
  EXPECT_EQ(exhausted(), (OutOfMemory{"/job/step", 1000, 1000})) << "the lowest of equals";
  set(folder / "job/step", "800", "600");
  EXPECT_EQ(exhausted(), (OutOfMemory{"/job", 1000, 1000})) << "other steps used the job's memory";
  set(folder, "2000", "2000");
  set(folder / "job", "1000", "900");
  EXPECT_EQ(exhausted(), (OutOfMemory{"/", 2000, 2000})) << "a container's own limit";
  set(folder / "job/step", "1000", "995");
  EXPECT_EQ(exhausted(), (OutOfMemory{"/job/step", 1000, 995})) << "files filled what is above";
}

TEST_F(FolderTest, ACgroupOfVersionTwoMayNotSayItsPeak) {
  std::filesystem::create_directories(folder / "job/task");
  std::ofstream(folder / "job/task/memory.max") << "max";
  std::ofstream(folder / "job/memory.max") << "1000";
  EXPECT_EQ(exhausted_cgroup({(folder / "job/task").string(), true}, "/job/task"),
            (OutOfMemory{"/job", 1000}));
}

constexpr int kPid = 77;
constexpr const char* kNoLog = "/nonexistent/kmsg";
constexpr const char* kByAnother = "sent by another process; no record of the out-of-memory killer";

class KillExplainerTest : public FolderTest {
 protected:
  KillExplainer explainer(const char* log) {
    KillExplainer made(
        KernelLog(log), [this] { return kills; }, [this] { return cgroup; });
    made.attempt_started();
    made.workers_started();
    return made;
  }
  std::optional<std::uint64_t> kills = 5;
  std::string cgroup = "/";
};

TEST_F(KillExplainerTest, ACountThatGrewInThisAttemptIsTheKiller) {
  KillExplainer found = explainer(kNoLog);
  EXPECT_EQ(found.explain(kPid), kByAnother);
  kills = 6;
  EXPECT_EQ(found.explain(kPid).find("out of memory"), 0U);
}

TEST_F(KillExplainerTest, ACountThatGrewInAnEarlierAttemptIsNot) {
  KillExplainer found = explainer(kNoLog);
  kills = 6;
  found.attempt_started();
  EXPECT_EQ(found.explain(kPid), kByAnother);
}

TEST_F(KillExplainerTest, AChildsKillIsToldByTheCountOfThisAttempt) {
  KillExplainer found = explainer(kNoLog);
  EXPECT_EQ(found.explain_child(true), "");
  kills = 6;
  EXPECT_EQ(found.explain_child(false).find("the kernel killed a process beside it"), 0U);
  found.attempt_started();
  EXPECT_EQ(found.explain_child(true), "");
}

// Others may have run out of memory on the same host: the log alone proves nothing.
TEST_F(KillExplainerTest, AChildsKillInTheLogCountsWhereTheWorkerTellsOfIt) {
  { std::ofstream(folder / "kmsg") << "6,1,1,-;before the job\n"; }
  KillExplainer found = explainer((folder / "kmsg").c_str());
  std::ofstream(folder / "kmsg", std::ios::app)
      << "6,2,2,-;oom-kill:constraint=CONSTRAINT_NONE,global_oom,task=x,pid=78,uid=0";
  EXPECT_EQ(found.explain_child(false), "");
  EXPECT_NE(found.explain_child(true).find("the host had none left"), std::string::npos);
  found.attempt_started();
  EXPECT_EQ(found.explain_child(true), "") << "of an earlier attempt";
}

// Two jobs of one host run out of memory at once.
TEST(LastOutOfMemory, IsOfThatCgroupAndNotOfAnotherJobs) {
  std::vector<std::string> lines;
  for (const std::string victim : {"/job/1", "/job/1/worker", "/job/12", "/job"})
    lines.push_back("oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=" + victim +
                    ",task_memcg=" + victim + ",task=x,pid=78,uid=0");
  const auto exhausted = [&](std::string_view cgroup) {
    return last_out_of_memory(lines, cgroup).value_or(OutOfMemory{"none"}).cgroup;
  };
  EXPECT_EQ(exhausted("/job/1"), "/job/1/worker");
  EXPECT_EQ(exhausted("/1"), "/job/1/worker") << "as a container names its own";
  EXPECT_EQ(exhausted("/job/12"), "/job/12");
  EXPECT_EQ(exhausted("/job/2"), "none");
  EXPECT_EQ(exhausted("/"), "/job");
}

TEST_F(KillExplainerTest, TheCountTellsOfOurCgroupWhereTheLogHasOnlyOthers) {
  { std::ofstream(folder / "kmsg") << "6,1,1,-;before the job\n"; }
  cgroup = "/job/1";
  KillExplainer found = explainer((folder / "kmsg").c_str());
  std::ofstream(folder / "kmsg", std::ios::app)
      << "6,2,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/job/2,task_memcg=/job/2,pid=78";
  kills = 6;
  const std::string told = found.explain_child(true);
  EXPECT_NE(told.find("out of memory"), std::string::npos) << told;
  EXPECT_EQ(told.find("/job/2"), std::string::npos) << told;
}

TEST(WordOfAKill, IsHowDataLoadersPoolsAndShellsSayIt) {
  for (const char* word :
       {"RuntimeError: DataLoader worker (pid 12) is killed by signal: Killed. ",
        "BrokenProcessPool: A process in the process pool was terminated abruptly while the future",
        "./train.sh: line 3:    12 Killed                  python train.py", "Killed",
        "subprocess.CalledProcessError: Command 'x' died with <Signals.SIGKILL: 9>."})
    EXPECT_TRUE(is_word_of_a_kill(word)) << word;
  for (const char* other :
       {"", "ValueError: x", "killed the time", "died with <Signals.SIGSEGV: 11>."})
    EXPECT_FALSE(is_word_of_a_kill(other)) << other;
}

TEST_F(KillExplainerTest, WhereNothingCanBeReadNobodyIsCleared) {
  kills.reset();
  EXPECT_EQ(explainer(kNoLog).explain(kPid),
            "sent by another process, or by the out-of-memory killer: neither the kernel's log nor "
            "a cgroup counter can be read here");
  { std::ofstream(folder / "kmsg") << ""; }
  EXPECT_EQ(explainer((folder / "kmsg").c_str()).explain(kPid), kByAnother)
      << "the log has no record";
}

TEST_F(KillExplainerTest, TheKernelsLogNamesTheVictim) {
  { std::ofstream(folder / "kmsg") << "6,1,1,-;before the job\n"; }
  KillExplainer found = explainer((folder / "kmsg").c_str());
  std::ofstream(folder / "kmsg", std::ios::app)
      << "6,2,2,-;oom-kill:constraint=CONSTRAINT_NONE,global_oom,task=x,pid=77,uid=0";
  EXPECT_EQ(found.explain(kPid), "out of memory: the kernel killed it, the host had none left");
  EXPECT_EQ(found.explain(kPid + 1), kByAnother);
}

}  // namespace
}  // namespace ddprun::agent
