#include "worker/checkpoint/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <span>
#include <string>

#include "tests/examples/temporary_folder.h"

namespace ddprun::worker {
namespace {

using examples::read_bytes;
using examples::TemporaryFolder;
using examples::write_bytes;

Result<void> write_file_atomically(const std::filesystem::path& path, std::string_view bytes) {
  auto file = AtomicFile::create(path);
  if (!file) return file.error();
  // In two pieces: a small one and the rest.
  const auto all = std::as_bytes(std::span(bytes));
  auto written = file->write(all.first(1));
  if (written) written = file->write(all.subspan(1));
  return written ? file->commit() : written;
}

constexpr std::size_t kLargeBytes = std::size_t{4} << 20;

class AtomicFileTest : public testing::Test {
 protected:
  std::filesystem::path path() const { return folder_.path() / "state.pt"; }
  std::filesystem::path temporary() const { return folder_.path() / "state.pt.tmp"; }

  TemporaryFolder folder_;
};

TEST_F(AtomicFileTest, MakesAndReplacesAFile) {
  ASSERT_TRUE(write_file_atomically(path(), "old"));
  EXPECT_EQ(read_bytes(path()), "old");
  ASSERT_TRUE(write_file_atomically(path(), std::string(kLargeBytes, 'n')));
  EXPECT_EQ(read_bytes(path()), std::string(kLargeBytes, 'n'));
  EXPECT_FALSE(std::filesystem::exists(temporary()));
}

TEST_F(AtomicFileTest, OverwritesWhatADeadWriterLeft) {
  write_bytes(temporary(), std::string(1000, 'x'));
  ASSERT_TRUE(write_file_atomically(path(), "new"));
  EXPECT_EQ(read_bytes(path()), "new");
  EXPECT_FALSE(std::filesystem::exists(temporary()));
}

TEST_F(AtomicFileTest, NamesAFolderThatIsNotThere) {
  const auto target = folder_.path() / "nowhere" / "state.pt";
  const auto written = write_file_atomically(target, "x");
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().message(),
            "create " + target.string() + ".tmp: No such file or directory");
  EXPECT_FALSE(check_replaceable(target));
}

TEST_F(AtomicFileTest, TellsBeforehandWhetherItCanBeWritten) {
  EXPECT_TRUE(check_replaceable(path()));
  EXPECT_FALSE(check_replaceable(folder_.path())) << "a folder";
  write_bytes(path(), "old");
  EXPECT_TRUE(check_replaceable(path()));
  EXPECT_FALSE(check_replaceable(path() / "below-a-file"));
}

TEST_F(AtomicFileTest, ReplacesNoDeviceNorPipe) {
  const auto refused = check_replaceable("/dev/null");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message(),
            "'/dev/null' given, expected a regular file or the name of a new one");
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  EXPECT_FALSE(check_replaceable(path()));
  std::filesystem::create_symlink("/dev/null", folder_.path() / "link");
  EXPECT_FALSE(check_replaceable(folder_.path() / "link"));
}

TEST_F(AtomicFileTest, GivesASecondNameThatKeepsItsBytes) {
  const auto best = folder_.path() / "model_best.pt";
  for (const char* bytes : {"first", "second"}) {
    ASSERT_TRUE(write_file_atomically(path(), bytes));
    ASSERT_TRUE(also_name(path(), best));
    ASSERT_TRUE(also_name(path(), best)) << "again";
    EXPECT_EQ(read_bytes(best), bytes);
  }
  ASSERT_TRUE(write_file_atomically(path(), "third"));
  EXPECT_EQ(read_bytes(best), "second");
  EXPECT_EQ(read_bytes(path()), "third");
  EXPECT_FALSE(std::filesystem::exists(best.string() + ".tmp"));
  EXPECT_FALSE(also_name(folder_.path() / "nothing", best));
  EXPECT_EQ(read_bytes(best), "second");
}

TEST_F(AtomicFileTest, HasItsSecondNameBeforeItsFirst) {
  const auto best = folder_.path() / "model_best.pt";
  const auto write = [&](std::string_view bytes) {
    auto file = AtomicFile::create(path());
    EXPECT_TRUE(file && file->write(std::as_bytes(std::span(bytes))));
    return file->commit(best);
  };
  ASSERT_TRUE(write("first"));
  EXPECT_EQ(read_bytes(path()), "first");
  EXPECT_EQ(read_bytes(best), "first");
  // A folder in the place of the second name cannot be replaced: the first one keeps its bytes.
  std::filesystem::remove(best);
  std::filesystem::create_directories(best / "folder");
  EXPECT_FALSE(write("second"));
  EXPECT_EQ(read_bytes(path()), "first");
  EXPECT_FALSE(std::filesystem::exists(path().string() + ".tmp"));
}

// Bounds the size of the files that this process may write, as a full disk would.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : old_action_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit now{bytes, old_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &now);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  FileSizeLimit(FileSizeLimit&&) = delete;
  FileSizeLimit& operator=(FileSizeLimit&&) = delete;
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, old_action_);
  }

 private:
  rlimit old_{};
  sighandler_t old_action_;
};

TEST_F(AtomicFileTest, KeepsTheOldBytesWhereTheDiskIsFull) {
  ASSERT_TRUE(write_file_atomically(path(), "old"));
  {
    const FileSizeLimit limit(rlim_t{1} << 20);
    const auto written = write_file_atomically(path(), std::string(kLargeBytes, 'n'));
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().message(), "write " + temporary().string() + ": File too large");
  }
  EXPECT_EQ(read_bytes(path()), "old");
  EXPECT_FALSE(std::filesystem::exists(temporary())) << "the space is given back";
}

// Writes the file over and over, all of one letter, another letter each time. Tells of each new one
// through the pipe.
[[noreturn]] void write_for_ever(const std::filesystem::path& path, int told) {
  for (char letter = 'a';; letter = letter == 'z' ? 'a' : static_cast<char>(letter + 1)) {
    if (!write_file_atomically(path, std::string(kLargeBytes, letter))) ::_exit(1);
    if (::write(told, &letter, 1) != 1) ::_exit(1);
  }
}

// Starts a writer and kills it once it has told of `writes` of them. The file of the next one is
// there or was there.
void kill_a_writer_after(int writes, const std::filesystem::path& path,
                         const std::filesystem::path& temporary) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const pid_t writer = ::fork();
  ASSERT_GE(writer, 0);
  if (writer == 0) write_for_ever(path, pipe[1]);
  ::close(pipe[1]);
  char letter = 0;
  for (int i = 0; i < writes; ++i) ASSERT_EQ(::read(pipe[0], &letter, 1), 1);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (!std::filesystem::exists(temporary) && std::chrono::steady_clock::now() < until) {
  }
  ::kill(writer, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(writer, &status, 0), writer);
  EXPECT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself";
  ::close(pipe[0]);
}

TEST_F(AtomicFileTest, IsWholeAfterAKillAtAnyMoment) {
  int caught_writing = 0;
  for (int round = 0; round < 30; ++round) {
    kill_a_writer_after(1 + round % 3, path(), temporary());
    const std::string bytes = read_bytes(path());
    ASSERT_EQ(bytes.size(), kLargeBytes);
    ASSERT_EQ(bytes, std::string(kLargeBytes, bytes.front()));
    if (std::filesystem::remove(temporary())) ++caught_writing;
  }
  EXPECT_GT(caught_writing, 0) << "no kill fell into a write: this test has shown nothing";
}

}  // namespace
}  // namespace ddprun::worker
