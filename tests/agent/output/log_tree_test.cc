// Log folders: real files, no processes.
#include "agent/output/log_tree.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace ddprun::agent {
namespace {

namespace fs = std::filesystem;

class FilesTest : public FolderTest {};

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

TEST_F(FilesTest, AFolderThatCannotBeReadIsNoReasonToFail) {
  fs::create_directories(folder / "root" / "closed");
  { std::ofstream(folder / "root" / "zz_file") << "x"; }
  fs::permissions(folder / "root" / "closed", fs::perms::none);
  constexpr uid_t kNobody = 65534;
  for (const fs::path& path : {folder, folder / "root", folder / "root" / "closed"})
    (void)::chown(path.c_str(), kNobody, kNobody);  // refused to all but root, whom it is meant for
  EXPECT_EXIT(
      {
        (void)::setuid(kNobody);
        remove_temporary_logs(folder / "root", true);
        ::_exit(fs::exists(folder / "root" / "zz_file") ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
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

}  // namespace
}  // namespace ddprun::agent
