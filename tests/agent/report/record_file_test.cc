// Records for others: files that appear whole, and what is no file and must stay so.
#include "agent/report/record_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <string>

#include "base/file_handle.h"
#include "tests/support/temporary_folder.h"

namespace ddprun::agent {
namespace {

namespace fs = std::filesystem;

class RecordFileTest : public FolderTest {
 protected:
  std::string path(const char* name) const { return folder / name; }
  std::ptrdiff_t entries() const {
    const auto all = fs::directory_iterator(folder);
    return std::distance(begin(all), end(all));
  }
};

TEST_F(RecordFileTest, ReplacesAFileByOneOfItsOwn) {
  { std::ofstream(folder / "file") << "something longer"; }
  const FileHandle reader(::open(path("file").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(write_record(path("file"), "text").has_value());
  EXPECT_EQ(content(folder / "file"), "text");
  std::array<char, 100> buffer;
  EXPECT_EQ(::read(reader.get(), buffer.data(), buffer.size()), 16) << "who reads has it whole";
  EXPECT_EQ(entries(), 1);
}

TEST_F(RecordFileTest, WritesThroughAFifoAndLeavesIt) {
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  EXPECT_FALSE(write_record(path("fifo"), "text").has_value()) << "nobody reads";
  const FileHandle reader(::open(path("fifo").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(write_record(path("fifo"), "text").has_value());
  std::array<char, 100> buffer;
  EXPECT_EQ(::read(reader.get(), buffer.data(), buffer.size()), 4);
  EXPECT_TRUE(fs::is_fifo(folder / "fifo"));
  EXPECT_EQ(entries(), 1);
}

// A device of our own: should this fail as root, the machine keeps its /dev/null.
TEST_F(RecordFileTest, WritesThroughADeviceAndLeavesIt) {
  if (::mknod(path("null").c_str(), S_IFCHR | 0600, makedev(1, 3)) != 0)
    GTEST_SKIP() << "only root may make a device";
  EXPECT_TRUE(can_write_record(path("null")).has_value());
  ASSERT_TRUE(write_record(path("null"), "text").has_value());
  EXPECT_TRUE(fs::is_character_file(folder / "null"));
  EXPECT_EQ(entries(), 1);
}

TEST_F(RecordFileTest, FollowsLinks) {
  fs::create_symlink("target", folder / "link");
  EXPECT_TRUE(can_write_record(path("link")).has_value());
  for (const char* text : {"a long text", "short"}) {
    ASSERT_TRUE(write_record(path("link"), text).has_value());
    EXPECT_TRUE(fs::is_symlink(folder / "link"));
    EXPECT_EQ(content(folder / "target"), text);
  }
}

// Files that another user has put into a folder that everybody may write, such as /tmp.
class PlantedTest : public RecordFileTest {
 protected:
  static constexpr uid_t kOther = 65534;
  void SetUp() override {
    RecordFileTest::SetUp();
    if (::geteuid() != 0) GTEST_SKIP() << "only root may give a file to another user";
    fs::create_directory(folder / "shared");
    ASSERT_EQ(::chmod(path("shared").c_str(), 01777), 0);
    std::ofstream(folder / "victim") << "of value";
  }
  void give_away(const std::string& name) const {
    ASSERT_EQ(::lchown(path(name.c_str()).c_str(), kOther, kOther), 0);
  }
  // `act` in a process of another user; answers what it returned.
  template <typename Act>
  static bool as_user(uid_t user, Act act) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(::setuid(user) == 0 && act() ? 0 : 1);
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
};

TEST_F(PlantedTest, ReplacesALinkOfAnotherUserAndDoesNotFollowIt) {
  fs::create_symlink(folder / "victim", folder / "shared" / "report");
  give_away("shared/report");
  EXPECT_TRUE(can_write_record(path("shared/report")).has_value());
  ASSERT_TRUE(write_record(path("shared/report"), "text").has_value());
  EXPECT_EQ(content(folder / "victim"), "of value");
  EXPECT_FALSE(fs::is_symlink(folder / "shared" / "report"));
  EXPECT_EQ(content(folder / "shared" / "report"), "text");
}

TEST_F(PlantedTest, TellsNothingToAFifoOfAnotherUser) {
  ASSERT_EQ(::mkfifo(path("shared/report").c_str(), 0622), 0);
  give_away("shared/report");
  const FileHandle reader(::open(path("shared/report").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(write_record(path("shared/report"), "text").has_value());
  std::array<char, 100> buffer;
  EXPECT_EQ(::read(reader.get(), buffer.data(), buffer.size()), 0);
  EXPECT_EQ(content(folder / "shared" / "report"), "text");
}

TEST_F(PlantedTest, RefusesAFileOfAnotherUserThatMayNotBeReplaced) {
  { std::ofstream(folder / "shared" / "report") << "other"; }
  ASSERT_EQ(::chmod(path("shared/report").c_str(), 0666), 0);
  give_away("shared/report");
  ASSERT_EQ(::chmod(folder.c_str(), 0755), 0);
  constexpr uid_t kUs = 65533;
  EXPECT_TRUE(as_user(kUs, [&] { return !can_write_record(path("shared/report")); }));
  EXPECT_TRUE(as_user(kUs, [&] { return !write_record(path("shared/report"), "text"); }));
  EXPECT_EQ(content(folder / "shared" / "report"), "other");
}

TEST_F(PlantedTest, MakesItsDraftUnderANameThatNobodyKnows) {
  for (const std::string& name : {std::string("report.0"), fmt::format("report.{}", ::getpid()),
                                  std::string("report.unfinished"), std::string("report.tmp")})
    fs::create_symlink(folder / "victim", folder / "shared" / name);
  ASSERT_TRUE(write_record(path("shared/report"), "text").has_value());
  EXPECT_EQ(content(folder / "victim"), "of value");
  EXPECT_EQ(content(folder / "shared" / "report"), "text");
}

TEST_F(RecordFileTest, DoesNotTruncateWhatOurOwnOutputIsOn) {
  fs::create_symlink("/proc/self/fd/1", folder / "stdout");
  const FileHandle log(::open(path("job.log").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const FileHandle before(::dup(STDOUT_FILENO));
  ASSERT_EQ(::dup2(log.get(), STDOUT_FILENO), STDOUT_FILENO);
  const bool printed = ::write(STDOUT_FILENO, "output\n", 7) == 7;
  const auto written = write_record(path("stdout"), "record\n");
  const bool printed_on = ::write(STDOUT_FILENO, "more\n", 5) == 5;
  ::dup2(before.get(), STDOUT_FILENO);
  EXPECT_TRUE(printed && printed_on && written.has_value());
  EXPECT_EQ(content(folder / "job.log"), "output\nrecord\nmore\n");
}

TEST_F(RecordFileTest, SaysWhatCannotBeWrittenBeforehand) {
  EXPECT_EQ(can_write_record(folder).error().message(), "it is a folder");
  EXPECT_EQ(can_write_record(folder / "absent" / "file").error().message(),
            "No such file or directory");
  EXPECT_TRUE(can_write_record(folder / "new").has_value());
}

}  // namespace
}  // namespace ddprun::agent
