// Log folders, tee pipes and the console: real files and pipes, no processes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "agent/console.h"
#include "agent/log_pipes.h"
#include "agent/log_tree.h"
#include "agent/tee_sink.h"

namespace ddprun::agent {
namespace {

namespace fs = std::filesystem;

std::string content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class FilesTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "ddprun_files_XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    folder = path;
  }
  void TearDown() override { fs::remove_all(folder); }

  // A tee'd stream as WorkerFiles makes it.
  Result<FileHandle> open_tee(LogPipes& pipes, Screen& screen, LineSource source = {}) {
    const std::string name = "stdout" + std::to_string(source.rank) + ".log";
    return pipes.open(std::make_unique<TeeSink>(new_file(name), std::move(source), screen));
  }

  FileHandle new_file(const std::string& name) const {
    return FileHandle(::open((folder / name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  }

  fs::path folder;
};

TEST_F(FilesTest, LogFoldersAreLaidOutAsTorchrunDoes) {
  const auto tree = LogTree::make(folder / "new" / "logs", "job");
  ASSERT_TRUE(tree.has_value()) << tree.error().message();
  const std::string worker = *tree->worker_folder(2, 11);
  const fs::path relative = fs::path(worker).lexically_relative(folder / "new" / "logs");
  EXPECT_EQ(relative.begin()->string().substr(0, 4), "job_");
  EXPECT_EQ(relative.lexically_relative(*relative.begin()), "attempt_2/11");
  EXPECT_TRUE(fs::is_directory(worker));
}

TEST_F(FilesTest, DevNullMeansNoFiles) {
  const auto tree = LogTree::make("/dev/null", "job");
  ASSERT_TRUE(tree.has_value());
  EXPECT_FALSE(tree->enabled());
  EXPECT_EQ(*tree->worker_folder(0, 0), "");
}

TEST_F(FilesTest, ALogFolderThatIsAFileIsRefusedByFlagAndName) {
  { std::ofstream(folder / "file") << "x"; }
  const auto tree = LogTree::make(folder / "file", "job");
  ASSERT_FALSE(tree.has_value());
  EXPECT_EQ(tree.error().message().find("--log-dir=" + (folder / "file").string()), 0U)
      << tree.error().message();
}

TEST_F(FilesTest, ARunIdWithASlashIsRefused) {
  EXPECT_NE(LogTree::make(folder, "a/b").error().message().find("--rdzv-id=a/b"),
            std::string::npos);
}

TEST_F(FilesTest, ATemporaryTreeIsRemovedUnlessAFileMustBeKept) {
  ASSERT_EQ(::setenv("TMPDIR", folder.c_str(), 1), 0);
  const auto tree = LogTree::make("", "job");
  ASSERT_TRUE(tree.has_value());
  const std::string worker = *tree->worker_folder(0, 0);
  { std::ofstream(fs::path(worker) / "stdout.log") << "x"; }
  tree->clean_up(true);
  EXPECT_TRUE(fs::exists(worker));
  tree->clean_up(false);
  EXPECT_TRUE(fs::is_empty(folder));
  const auto empty = LogTree::make("", "job");
  ASSERT_TRUE(empty->worker_folder(0, 0).has_value());
  empty->clean_up(true);
  EXPECT_TRUE(fs::is_empty(folder));
  ::unsetenv("TMPDIR");
}

TEST_F(FilesTest, LatestPointsAtTheJobThatBeganLast) {
  const fs::path root = folder / "logs";
  for (const char* id : {"a", "b"}) {
    const auto tree = LogTree::make(root, id);
    ASSERT_TRUE(tree.has_value());
    const fs::path job = fs::path(tree->attempt_path(0)).parent_path();
    EXPECT_TRUE(fs::is_symlink(root / "latest"));
    EXPECT_EQ(fs::read_symlink(root / "latest"), job.filename());
  }
  const auto entries = fs::directory_iterator(root);
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 3) << "two jobs, one link, nothing else";
}

TEST_F(FilesTest, WhatTheUserCallsLatestStays) {
  fs::create_directory(folder / "latest");
  ASSERT_TRUE(LogTree::make(folder, "job").has_value());
  EXPECT_TRUE(fs::is_directory(fs::symlink_status(folder / "latest")));
  fs::remove(folder / "latest");
  { std::ofstream(folder / "latest") << "mine"; }
  ASSERT_TRUE(LogTree::make(folder, "job").has_value());
  EXPECT_EQ(content(folder / "latest"), "mine");
}

TEST_F(FilesTest, ATemporaryTreeHasNoLatestLink) {
  ASSERT_EQ(::setenv("TMPDIR", folder.c_str(), 1), 0);
  const auto tree = LogTree::make("", "job");
  ASSERT_TRUE(tree.has_value());
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    EXPECT_NE(entry.path().filename(), "latest");
  tree->clean_up(false);
  ::unsetenv("TMPDIR");
}

TEST_F(FilesTest, TheTailOfAFileIsReadFromItsEnd) {
  {
    std::ofstream file(folder / "stderr.log");
    for (int line = 0; line < 1000; ++line) file << line << "\n";
  }
  const std::string path = folder / "stderr.log";
  EXPECT_EQ(LogTree::tail(path, 2, 1000), (std::vector<std::string>{"998", "999"}));
  EXPECT_EQ(LogTree::tail(path, 20, 6), (std::vector<std::string>{"8", "999"}));
  EXPECT_TRUE(LogTree::tail(folder / "absent", 2, 1000).empty());
}

TEST_F(FilesTest, TeeWritesEveryByteToTheFileAndPrefixedLinesToTheConsole) {
  asio::io_context loop(1);
  {
    const FileHandle screen = new_file("screen");
    Console console(loop, screen.get());
    Screen lines(console, {}, FileHandle());
    LogPipes pipes(loop);
    auto writer = open_tee(pipes, lines, {.prefix = "[r0]:"});
    ASSERT_TRUE(writer.has_value());
    ASSERT_EQ(::write(writer->get(), "a\0b\nlast", 8), 8);
    loop.poll();
    writer->close();
    pipes.drain();
    console.flush();
  }
  EXPECT_EQ(content(folder / "stdout0.log"), std::string("a\0b\nlast", 8));
  EXPECT_EQ(content(folder / "screen"), std::string("[r0]:a\0b\n[r0]:last\n", 19));
}

// A worker that writes more than all buffers hold, and a screen that is read only when nothing else
// can move.
TEST_F(FilesTest, NothingIsLostWhenTheConsoleIsSlow) {
  constexpr int kLines = 400'000;  // some 2.7 MB: pipes and backlog together hold half of it
  std::string expected;
  for (int line = 0; line < kLines; ++line) expected += std::to_string(line) + "\n";
  int screen[2];
  ASSERT_EQ(::pipe2(screen, O_CLOEXEC), 0);
  const FileHandle reader(screen[0]);
  const FileHandle screen_writer(screen[1]);
  ASSERT_EQ(::fcntl(reader.get(), F_SETFL, O_NONBLOCK), 0);
  asio::io_context loop(1);
  Console console(loop, screen_writer.get());
  Screen lines(console, {}, FileHandle());
  LogPipes pipes(loop);
  auto writer = open_tee(pipes, lines);
  ASSERT_EQ(::fcntl(writer->get(), F_SETFL, O_NONBLOCK), 0);
  std::string shown;
  std::size_t sent = 0;
  bool held_back = false;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (shown.size() < expected.size() && std::chrono::steady_clock::now() < deadline) {
    const ssize_t wrote = ::write(writer->get(), expected.data() + sent, expected.size() - sent);
    if (wrote > 0) sent += static_cast<std::size_t>(wrote);
    if (sent == expected.size()) writer->close();
    loop.restart();
    loop.poll();
    if (wrote > 0) continue;
    held_back = held_back || sent < expected.size();
    std::array<char, 65536> buffer;
    const ssize_t got = ::read(reader.get(), buffer.data(), buffer.size());
    if (got > 0) shown.append(buffer.data(), static_cast<std::size_t>(got));
  }
  EXPECT_TRUE(held_back);
  EXPECT_TRUE(shown == expected) << shown.size() << " of " << expected.size() << " bytes";
  EXPECT_TRUE(content(folder / "stdout0.log") == expected);
}

TEST_F(FilesTest, AConsoleThatNobodyReadsDropsTextInsteadOfFailing) {
  ::signal(SIGPIPE, SIG_IGN);
  asio::io_context loop(1);
  int screen[2];
  ASSERT_EQ(::pipe2(screen, O_CLOEXEC), 0);
  ::close(screen[0]);
  const FileHandle writer(screen[1]);
  Console console(loop, writer.get());
  console.write("text\n");
  loop.poll();
  console.flush();
  EXPECT_FALSE(console.full());
  ::signal(SIGPIPE, SIG_DFL);
}

}  // namespace
}  // namespace ddprun::agent
