#include "agent/monitors/attempt_progress.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

namespace ddprun::agent {
namespace {

using Step = std::optional<std::int64_t>;

rendezvous::Failure told(AttemptProgress& progress, const std::vector<WorkerProgress>& workers) {
  rendezvous::Failure failure;
  progress.tell(failure, workers);
  return failure;
}
WorkerProgress python(std::uint64_t steps) {
  return {.first_line = Time(std::chrono::seconds(1)), .steps = steps};
}

TEST(AttemptProgress, OfPagesIsKnownFromTheFirstStepOfTheJobOn) {
  AttemptProgress progress("", false);
  EXPECT_EQ(told(progress, {python(0), python(0)}).step, Step());
  EXPECT_EQ(told(progress, {python(3), python(4)}).step, Step(4));
  EXPECT_EQ(told(progress, {python(0), python(0)}).step, Step(0));
  EXPECT_FALSE(told(progress, {python(0)}).is_step_of_run);
  EXPECT_EQ(told(progress, {}).step, Step(0));
}

TEST(AttemptProgress, OfPagesIsKnownFromTheFirstAttemptOnIfTheUserWantsIt) {
  AttemptProgress progress("", true);
  EXPECT_EQ(told(progress, {python(0)}).step, Step(0));
  AttemptProgress other("", true);
  EXPECT_EQ(told(other, {{}, {}}).step, Step()) << "no page is written: nobody counts";
}

TEST(AttemptProgress, OfAFileIsWhatTheProgramWrote) {
  const std::string path = testing::TempDir() + "progress_" + std::to_string(::getpid());
  const auto write = [&path](const std::string& text) { std::ofstream(path) << text; };
  write("5000\n");
  AttemptProgress progress(path, false);
  EXPECT_EQ(told(progress, {}).step, Step()) << "an earlier job wrote it";
  for (const auto& [text, step] : std::vector<std::pair<std::string, Step>>{
           {" 12\n", 12}, {"13 of 20", 13}, {"", Step()}, {"-4", Step()}, {"many", Step()}}) {
    write(text);
    const auto failure = told(progress, {});
    EXPECT_EQ(failure.step, step) << text;
    EXPECT_EQ(failure.is_step_of_run, step.has_value()) << text;
  }
  const std::string link = path + "_link";
  std::filesystem::create_symlink(path, link);
  AttemptProgress by_link(link, false);
  write("99");
  EXPECT_EQ(told(by_link, {}).step, Step(99));
  std::remove(link.c_str());
  std::remove(path.c_str());
  EXPECT_EQ(told(progress, {python(7)}).step, Step(7)) << "then pages count";
  EXPECT_FALSE(told(progress, {python(7)}).is_step_of_run);
}

}  // namespace
}  // namespace ddprun::agent
