// The facts that are gathered of workers that died, and the records that are left of them.
#include "agent/report/post_mortem.h"

#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "tests/support/temporary_folder.h"

namespace ddprun::agent {
namespace {

using Json = nlohmann::json;

class PostMortemTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    config.streams.resize(2);
    config.worker_count = 2;
    config.log_dir = folder / "logs";
    config.entry = "train.py";
    config.error_file = folder / "launcher.json";
    config.error_report = folder / "report.json";
    config.streams[1].redirect_stderr = true;
    logs = std::move(*LogTree::make(config.log_dir, "job"));
    for (const int rank : {0, 1}) ASSERT_TRUE(files.open({.local_rank = rank}).has_value());
    lifecycle.start();
    lifecycle.on_message(
        rendezvous::RoundPublished{.round = {.number = 1, .world_size = 2, .node_count = 1},
                                   .seat = {}},
        now());
  }
  // Rank 1 ends by itself, rank 0 is stopped.
  void fail(int exit_code) {
    lifecycle.worker_exited({.local_rank = 1, .pid = 77, .exit_code = exit_code}, now());
    lifecycle.worker_exited({.local_rank = 0, .pid = 76, .exit_code = -SIGTERM}, now());
  }
  void write_stderr(const std::string& text) const {
    std::ofstream(files.stderr_path(0, 1)) << text;
  }
  Json launcher_record() const { return Json::parse(content(config.error_file)); }

  asio::io_context loop{1};
  AgentConfig config;
  LogTree logs;
  LogPipes pipes{loop};
  Consoles consoles{loop, 1, 2};
  WorkerFiles files{config, logs, pipes, consoles, "h"};
  PostMortem post_mortem{config, files};
  Lifecycle lifecycle{{.worker_count = 2, .hostname = "h"}};
};

TEST_F(PostMortemTest, AWorkerThatRecordedNothingGetsAReasonAndItsLastWords) {
  write_stderr("first\nboom\n");
  fail(3);
  const ReportFacts facts = post_mortem.examine(lifecycle, "h");
  post_mortem.file(facts, {.cause = rendezvous::Failure{}}, 1);
  const std::string message = launcher_record()["message"]["message"];
  EXPECT_TRUE(message.starts_with("rank 1 (local rank 1, pid 77) exited with code 3\n")) << message;
  EXPECT_TRUE(message.ends_with("first\nboom\n")) << message;
  EXPECT_EQ(launcher_record()["message"]["errorCode"], 3);
  // The worker's own error file, which it did not write, tells the same.
  EXPECT_EQ(Json::parse(content(files.error_file(0, 1)))["message"]["message"], message);
  EXPECT_FALSE(std::filesystem::exists(files.error_file(0, 0))) << "it was only stopped";
}

TEST_F(PostMortemTest, ReadsNoRecordThroughALink) {
  std::ofstream(folder / "secret") << R"({"message": {"message": "secret"}})";
  std::filesystem::create_symlink(folder / "secret", files.error_file(0, 1));
  fail(3);
  const ReportFacts facts = post_mortem.examine(lifecycle, "h");
  ASSERT_FALSE(facts.workers.empty());
  for (const ReportedWorker& worker : facts.workers) EXPECT_FALSE(worker.record.has_value());
}

TEST_F(PostMortemTest, LastWordsFitIntoATerminationMessage) {
  std::string text;
  for (int line = 0; line < 20; ++line) text += std::string(280, 'x') + std::to_string(line) + "\n";
  write_stderr(text);
  fail(-SIGSEGV);
  post_mortem.file(post_mortem.examine(lifecycle, "h"), {.cause = rendezvous::Failure{}}, 1);
  const std::string whole = content(config.error_file);
  EXPECT_LT(whole.size(), 4096U);
  EXPECT_NE(whole.find("SIGSEGV"), std::string::npos);
  EXPECT_NE(whole.find("x19"), std::string::npos) << "the last ones are kept";
}

TEST_F(PostMortemTest, WhatAWorkerRecordedStaysAndIsPassedOn) {
  const std::string record =
      R"({"message":{"message":"ValueError: x","extraInfo":{"timestamp":"1"}}})";
  std::ofstream(files.error_file(0, 1)) << record;
  fail(1);
  const ReportFacts facts = post_mortem.examine(lifecycle, "h");
  ASSERT_TRUE(root_cause(facts).has_value());
  EXPECT_EQ(facts.workers[*root_cause(facts)].record->message, "ValueError: x");
  post_mortem.file(facts, {.cause = rendezvous::Failure{}}, 1);
  EXPECT_EQ(content(files.error_file(0, 1)), record);
  EXPECT_EQ(launcher_record()["message"]["message"], "ValueError: x");
}

TEST_F(PostMortemTest, TheLaunchersOwnFailureIsOnRecord) {
  const Ending ending{.session_error = Error(ErrorCode::kTimedOut, "1 of 2 nodes joined")};
  post_mortem.file(post_mortem.examine(lifecycle, "h"), ending, 1);
  EXPECT_EQ(launcher_record()["message"]["message"], "1 of 2 nodes joined");
}

TEST_F(PostMortemTest, AJobThatEndedWellLeavesNoErrorFile) {
  post_mortem.file(post_mortem.examine(lifecycle, "h"), {.succeeded = true}, 0);
  EXPECT_FALSE(std::filesystem::exists(config.error_file));
  EXPECT_EQ(Json::parse(content(config.error_report))["succeeded"], true);
}

TEST_F(PostMortemTest, AReportThatCannotBeWrittenIsRefusedBeforeAnyWork) {
  EXPECT_TRUE(post_mortem.check().has_value());
  config.error_report = folder / "missing" / "report.json";
  ASSERT_FALSE(post_mortem.check().has_value());
  EXPECT_NE(post_mortem.check().error().message().find("--error-report="), std::string::npos);
}

}  // namespace
}  // namespace ddprun::agent
