// The places of a worker's streams: the table in agent/output/worker_files.h, on real files and
// pipes.
#include "agent/output/worker_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "tests/agent/output/flushed.h"
#include "tests/support/temporary_folder.h"

namespace ddprun::agent {
namespace {

class WorkerFilesTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    out_fd = FileHandle(::open((folder / "out").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    err_fd = FileHandle(::open((folder / "err").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    consoles = std::make_unique<Consoles>(loop, out_fd.get(), err_fd.get());
    config.streams.resize(2);
  }

  void make(const std::string& log_dir) {
    logs = std::move(*LogTree::make(log_dir, "job"));
    files = std::make_unique<WorkerFiles>(config, logs, pipes, *consoles, "node3.cluster");
  }
  // Starts a worker that writes "out\n" and "err\n", and waits for its end. A stream that it would
  // inherit is written to by nobody.
  void run(const WorkerStart& worker) {
    auto opened = files->open(worker);
    ASSERT_TRUE(opened.has_value()) << opened.error().message();
    error_file = opened->error_file;
    inherits_out = opened->out.get() < 0;
    if (!inherits_out) {
      ASSERT_EQ(::write(opened->out.get(), "out\n", 4), 4);
    }
    ASSERT_EQ(::write(opened->err.get(), "err\n", 4), 4);
    opened = OpenedFiles();
    pipes.drain();
    flush(loop, consoles->out());
    flush(loop, consoles->err());
  }
  std::string worker_file(int local_rank, const std::string& name, int attempt = 0) const {
    return content(std::filesystem::path(logs.worker_path(attempt, local_rank)) / name);
  }
  std::string out() const { return content(folder / "out"); }
  std::string err() const { return content(folder / "err"); }

  asio::io_context loop{1};
  AgentConfig config;
  LogTree logs;
  FileHandle out_fd;
  FileHandle err_fd;
  std::unique_ptr<Consoles> consoles;
  std::unique_ptr<WorkerFiles> files;
  LogPipes pipes{loop};
  std::string error_file;
  bool inherits_out = false;
};

using Lines = std::vector<std::string>;

TEST_F(WorkerFilesTest, WithoutFlagsStdoutIsInheritedAndStderrPassesThroughUs) {
  make(folder / "logs");
  run({.local_rank = 1, .rank = 5});
  EXPECT_TRUE(inherits_out);
  EXPECT_EQ(err(), "err\n");
  EXPECT_EQ(files->stderr_path(0, 1), "");
  EXPECT_EQ(files->stderr_tail(0, 1), Lines{"err"});
  EXPECT_EQ(files->stderr_tail(0, 0), Lines{}) << "never started";
  EXPECT_EQ(files->stderr_tail(1, 1), Lines{}) << "of another attempt";
  EXPECT_EQ(error_file, logs.worker_path(0, 1) + "/error.json");
}

TEST_F(WorkerFilesTest, RedirectedStreamsAreFilesOnly) {
  config.streams[0] = {.redirect_stdout = true, .redirect_stderr = true};
  make(folder / "logs");
  run({});
  EXPECT_EQ(worker_file(0, "stdout.log"), "out\n");
  EXPECT_EQ(worker_file(0, "stderr.log"), "err\n");
  EXPECT_EQ(out() + err(), "");
  EXPECT_EQ(files->stderr_path(0, 0), logs.worker_path(0, 0) + "/stderr.log");
  EXPECT_EQ(files->stderr_tail(0, 0), Lines{"err"});
}

TEST_F(WorkerFilesTest, TeedStreamsAreFilesAndPrefixedLines) {
  config.streams[1] = {.tee_stdout = true, .tee_stderr = true};
  config.role = "trn";
  config.output.prefix_template = "<$role_name$local_rank ${rank} ${hostname} ${restart}>";
  make(folder / "logs");
  run({.attempt = 2, .restart_count = 1, .local_rank = 1, .rank = 9});
  EXPECT_EQ(worker_file(1, "stdout.log", 2), "out\n");
  EXPECT_EQ(out(), "<trn1 9 node3 1>out\n");
  EXPECT_EQ(err(), "<trn1 9 node3 1>err\n");
  EXPECT_EQ(files->stderr_tail(2, 1), Lines{"err"});
}

TEST_F(WorkerFilesTest, HiddenStreamsAreFilesWhateverElseWasAsked) {
  config.streams[0] = {.shown = false};
  config.streams[1] = {.tee_stdout = true, .tee_stderr = true, .shown = false};
  config.output.stdout_filters = Lines{""};
  make(folder / "logs");
  for (const int rank : {0, 1}) {
    run({.local_rank = rank, .rank = rank});
    EXPECT_EQ(worker_file(rank, "stdout.log"), "out\n");
    EXPECT_EQ(worker_file(rank, "stderr.log"), "err\n");
    EXPECT_EQ(files->stderr_tail(0, rank), Lines{"err"});
  }
  EXPECT_EQ(out() + err(), "");
  EXPECT_EQ(content(logs.attempt_path(0) + "/filtered_stdout.log"), "");
}

TEST_F(WorkerFilesTest, FilteredFilesAreThereWhenFiltersAreAndHaveTheTeedLines) {
  config.streams[0] = {.tee_stdout = true, .tee_stderr = true};
  config.streams[1] = {.redirect_stdout = true, .redirect_stderr = true};
  config.output.stdout_filters = Lines{"ou"};
  make(folder / "logs");
  for (const int attempt : {0, 1}) {
    run({.attempt = attempt});
    run({.attempt = attempt, .local_rank = 1});
    EXPECT_EQ(content(logs.attempt_path(attempt) + "/filtered_stdout.log"), "[default0]:out\n");
    EXPECT_FALSE(std::filesystem::exists(logs.attempt_path(attempt) + "/filtered_stderr.log"));
  }
}

TEST_F(WorkerFilesTest, WithoutALogFolderNothingIsAFile) {
  config.streams[0] = {.redirect_stdout = true, .redirect_stderr = true};
  config.streams[1] = {.tee_stdout = true, .tee_stderr = true, .shown = false};
  config.output.stdout_filters = Lines{""};
  make("/dev/null");
  run({});
  EXPECT_TRUE(inherits_out);
  EXPECT_EQ(err(), "err\n");
  EXPECT_EQ(files->stderr_tail(0, 0), Lines{"err"});
  run({.local_rank = 1});
  EXPECT_FALSE(inherits_out) << "hidden: /dev/null";
  EXPECT_EQ(out(), "");
  EXPECT_EQ(err(), "err\n");
  EXPECT_EQ(files->stderr_path(0, 1), "");
  EXPECT_EQ(error_file, "");
  EXPECT_EQ(files->written_error_file(0, 0), "");
}

TEST_F(WorkerFilesTest, InOneFileStdoutAndStderrKeepTheirOrder) {
  consoles = std::make_unique<Consoles>(loop, out_fd.get(), out_fd.get());
  config.streams.resize(3);
  config.streams[1] = {.redirect_stdout = true};
  make(folder / "logs");
  auto opened = files->open({});
  ASSERT_TRUE(opened.has_value());
  for (int line = 0; line < 3; ++line) {
    ASSERT_EQ(::write(opened->out.get(), "out\n", 4), 4);
    ASSERT_EQ(::write(opened->err.get(), "err\n", 4), 4);
  }
  opened = OpenedFiles();
  pipes.drain();
  flush(loop, consoles->out());
  EXPECT_EQ(out(), "out\nerr\nout\nerr\nout\nerr\n");
  EXPECT_EQ(files->stderr_tail(0, 0).back(), "err");
  run({.local_rank = 1});
  EXPECT_EQ(worker_file(1, "stdout.log"), "out\n") << "asked for: a file";
}

TEST_F(WorkerFilesTest, ToDevNullStdoutIsInheritedThoughStderrIsTheSame) {
  const FileHandle nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  consoles = std::make_unique<Consoles>(loop, nowhere.get(), nowhere.get());
  make(folder / "logs");
  run({});
  EXPECT_TRUE(inherits_out);
  EXPECT_EQ(files->stderr_tail(0, 0), Lines{"err"});
}

TEST_F(WorkerFilesTest, OnATerminalStderrIsInheritedToo) {
  const FileHandle leader(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_EQ(::grantpt(leader.get()) + ::unlockpt(leader.get()), 0);
  const FileHandle terminal(::open(::ptsname(leader.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_GE(terminal.get(), 0);
  consoles = std::make_unique<Consoles>(loop, terminal.get(), terminal.get());
  make(folder / "logs");
  const auto opened = files->open({});
  ASSERT_TRUE(opened.has_value());
  EXPECT_LT(opened->out.get(), 0);
  EXPECT_LT(opened->err.get(), 0);
  EXPECT_EQ(files->stderr_tail(0, 0), Lines{});
}

TEST_F(WorkerFilesTest, LooksForAnErrorRecordWithoutMakingItsFolder) {
  make(folder / "logs");
  EXPECT_EQ(files->written_error_file(3, 1), "");
  EXPECT_FALSE(std::filesystem::exists(logs.worker_path(3, 1)));
  run({});
  EXPECT_EQ(files->written_error_file(0, 0), "");
  { std::ofstream(error_file) << "{}"; }
  EXPECT_EQ(files->written_error_file(0, 0), error_file);
}

}  // namespace
}  // namespace ddprun::agent
