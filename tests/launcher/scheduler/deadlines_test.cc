#include "launcher/scheduler/deadlines.h"

#include <gtest/gtest.h>

#include <semaphore>

#include "tests/launcher/scheduler/recorded.h"

namespace ddprun::launcher {
namespace {

TEST(Deadlines, LeaveTimeForTheReport) {
  EXPECT_EQ(good_in("slurm_step", {"E"}).shutdown_timeout.count(), 58);
  EXPECT_EQ(good_in("slurm_batch_script", {"--standalone", "E"}).shutdown_timeout.count(), 58);
  EXPECT_EQ(good_in("open_mpi_in_slurm", {"E"}).shutdown_timeout.count(), 58);
  EXPECT_EQ(good_in("indexed_job", {"--standalone", "E"}).shutdown_timeout.count(), 28);
  EXPECT_EQ(good_in("slurm_step", {"--shutdown-timeout=7", "E"}).shutdown_timeout.count(), 7);
  EXPECT_EQ(good_in("slurm_step", {"E"}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "9"}})
                .shutdown_timeout.count(),
            9);
  EXPECT_EQ(good_in("sagemaker", {"E"}).shutdown_timeout.count(), 30);
}

TEST(Deadlines, AreAskedForWhereNoVariableSaysThem) {
  EXPECT_EQ(good_in("slurm_step", {"E"}).ends_at->time_since_epoch().count(), 1795560000);
  EXPECT_EQ(good_in("slurm_step", {"E"}, {{"SLURM_JOB_END_TIME", "1795550000"}})
                .ends_at->time_since_epoch()
                .count(),
            1795550000);
  EXPECT_EQ(good_in("sagemaker", {"E"}).ends_at, std::nullopt);
}

TEST(Deadlines, AreThoseOfThisTaskOfAnArray) {
  SchedulerFacts task = detect(recorded("slurm_step"));
  task.slurm_job = "5";
  const Ask ask = [](const auto&) {
    return std::optional<std::string>("8 1795570973\n55 1795570974\n5 1795570975\n6 N/A\n");
  };
  EXPECT_EQ(end_of_job(task, ask)->time_since_epoch().count(), 1795570975);
  task.slurm_job = "6";
  EXPECT_EQ(end_of_job(task, ask), std::nullopt);
}

TEST(Deadlines, AreTheUsualOnesWhereSlurmDoesNotAnswer) {
  const SchedulerFacts step = detect(recorded("slurm_step"));
  for (const char* text : {"", "KillWait", "\nKillWait = x", "N/A\n", "NONE\n"}) {
    const Ask ask = [&](const auto&) { return std::optional<std::string>(text); };
    EXPECT_EQ(grace_under(step, ask), std::chrono::seconds(28)) << text;
    EXPECT_EQ(end_of_job(step, ask), std::nullopt) << text;
  }
  const Ask none = [](const auto&) { return std::optional<std::string>(); };
  EXPECT_EQ(grace_under(step, none), std::chrono::seconds(28));
  EXPECT_EQ(end_of_job(step, none), std::nullopt);
  const Ask short_wait = [](const auto&) {
    return std::optional<std::string>("\nKillWait  = 1 sec");
  };
  EXPECT_EQ(grace_under(step, short_wait), std::chrono::seconds(0));
}

TEST(Deadlines, AreAskedForAtOnce) {
  // Neither answers before the other one is asked.
  std::binary_semaphore config(0);
  std::binary_semaphore queue(0);
  const Ask ask = [&](const std::vector<std::string>& words) {
    const bool is_config = words.at(0) == "scontrol";
    (is_config ? config : queue).release();
    const bool asked = (is_config ? queue : config).try_acquire_for(std::chrono::seconds(20));
    return asked ? answer(words) : std::nullopt;
  };
  const Deadlines found = ask_deadlines(detect(recorded("slurm_step")), ask, true);
  EXPECT_EQ(found.grace, std::chrono::seconds(58));
  EXPECT_EQ(found.ends_at->time_since_epoch().count(), 1795560000);
}

TEST(Deadlines, AreNotAskedForWhatIsSaid) {
  const Ask ask = [](const std::vector<std::string>& words) {
    EXPECT_NE(words.at(0), "scontrol");
    return answer(words);
  };
  EXPECT_EQ(ask_deadlines(detect(recorded("slurm_step")), ask, false).grace, std::nullopt);
}

TEST(RunProgram, AnswersWhatItPrints) {
  EXPECT_EQ(run_program({"sh", "-c", "echo a; echo b >&2"}), "a\n");
  EXPECT_EQ(run_program({"cat"}), "");
  EXPECT_EQ(run_program({"sh", "-c", "echo a; exit 1"}), std::nullopt);
  EXPECT_EQ(run_program({"ddprun-no-such-program"}), std::nullopt);
}

TEST(RunProgram, TellsNobodyTheToken) {
  ::setenv("DDPRUN_TOKEN", "secret", 1);
  EXPECT_EQ(run_program({"sh", "-c", "echo ${DDPRUN_TOKEN-none} ${PATH:+path}"}), "none path\n");
  ::unsetenv("DDPRUN_TOKEN");
}

TEST(RunProgram, WaitsForNobody) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(run_program({"sleep", "1000"}), std::nullopt);
  EXPECT_EQ(run_program({"sh", "-c", "exec >&-; exec sleep 1000"}), std::nullopt);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

}  // namespace
}  // namespace ddprun::launcher
