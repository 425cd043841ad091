// Records for others: files that appear whole, and what is no file and must stay so.
#include "agent/report/record_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <string>

#include "proto/file_handle.h"
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
