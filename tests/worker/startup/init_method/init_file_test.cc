#include "worker/startup/init_method/init_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "worker/startup/init_method/init_record.h"

namespace ddprun::worker {
namespace {

class InitFileTest : public ::testing::Test {
 protected:
  InitFileTest() {
    std::string pattern = "/tmp/ddprun-init-XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  ~InitFileTest() override { std::filesystem::remove_all(folder_); }

  std::string path() const { return folder_ / "file"; }
  InitFile file() const { return {path(), "init_method=file://" + path()}; }
  void write(const std::string& text) const { std::ofstream(path(), std::ios::binary) << text; }
  std::ptrdiff_t names() const {
    return std::distance(std::filesystem::directory_iterator(folder_),
                         std::filesystem::directory_iterator());
  }
  std::string refusal_of(InitFile& file) const {
    const auto read = file.read();
    return read ? "read" : read.error().message();
  }

  std::filesystem::path folder_;
};

// Runs `body` in `count` processes, which begin at once. How many of them return true.
int how_many(int count, const std::function<bool(int)>& body) {
  std::array<int, 2> start{};
  EXPECT_EQ(::pipe(start.data()), 0);
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int number = 0; number < count; ++number) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(50);
      ::close(start[1]);
      char nothing = 0;
      const bool begun = ::read(start[0], &nothing, 1) == 0;  // the end of the pipe
      ::_exit(begun && body(number) ? 1 : 0);
    }
    children.push_back(child);
  }
  ::close(start[0]);
  ::close(start[1]);
  int yes = 0;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status)) << status;
    yes += WEXITSTATUS(status);
  }
  return yes;
}

TEST_F(InitFileTest, HoldsWhatTheFirstPutThere) {
  InitFile one = file();
  InitFile other = file();
  EXPECT_EQ(one.read().value(), std::nullopt);
  EXPECT_TRUE(one.create("mine").value());
  EXPECT_FALSE(other.create("theirs").value());
  EXPECT_EQ(other.read().value(), "mine");
  EXPECT_EQ(names(), 1);
}

TEST_F(InitFileTest, TakesAwayOnlyWhatIsNamed) {
  InitFile one = file();
  EXPECT_TRUE(one.create("mine").value());
  EXPECT_FALSE(one.remove("theirs").value());
  EXPECT_EQ(one.read().value(), "mine");
  EXPECT_TRUE(one.remove("mine").value());
  EXPECT_EQ(one.read().value(), std::nullopt);
  EXPECT_TRUE(one.remove("mine").value()) << "it is gone, as was asked";
  EXPECT_EQ(names(), 0);
}

TEST_F(InitFileTest, IsNobodyElsesToRead) {
  InitFile one = file();
  EXPECT_TRUE(one.create("mine").value());
  struct stat found {};
  ASSERT_EQ(::stat(path().c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0077u, 0u);
}

TEST_F(InitFileTest, ReadsNoMoreThanARecordAndOneByte) {
  write(std::string(10'000'000, 'x'));
  InitFile one = file();
  EXPECT_EQ(one.read().value()->size(), kInitRecordBytes + 1);
  write("");
  EXPECT_EQ(one.read().value(), "");
}

TEST_F(InitFileTest, IsOneOfManyThatCreateAtOnce) {
  for (int round = 0; round < 20; ++round) {
    EXPECT_EQ(how_many(6,
                       [this](int number) {
                         InitFile mine = file();
                         return mine.create(std::to_string(number)).value();
                       }),
              1);
    InitFile left = file();
    EXPECT_TRUE(left.remove(left.read().value().value()).value());
    EXPECT_EQ(names(), 0);
  }
}

// One of them may put its own there in the very moment in which another takes the old one away.
// Then a third may come between, and the first finds out when it looks again. So one of them is
// there.
TEST_F(InitFileTest, IsReplacedByOneOfManyThatFindAStaleOne) {
  for (int round = 0; round < 20; ++round) {
    write("stale");
    const int held = how_many(6, [this](int number) {
      InitFile mine = file();
      return mine.remove("stale").has_value() && mine.create(std::to_string(number)).value();
    });
    EXPECT_GE(held, 1);
    InitFile left = file();
    const std::string text = left.read().value().value();
    EXPECT_NE(text, "stale");
    EXPECT_EQ(names(), 1);
    EXPECT_TRUE(left.remove(text).value());
  }
}

TEST_F(InitFileTest, EndsAWaitWhenItAppears) {
  InitFile one = file();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(40);
  const auto waits = [&](int number) {
    if (number == 0) {
      std::ofstream(folder_ / "another") << "is no reason to wake up";
      InitFile theirs = file();
      return !theirs.create("theirs").value();
    }
    InitFile mine = file();
    // It may be there already: that is not announced.
    if (mine.read().value()) return true;
    mine.wait(deadline);
    return mine.read().value() == "theirs" && std::chrono::steady_clock::now() < deadline;
  };
  EXPECT_EQ(how_many(4, waits), 3);
  const auto soon = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
  EXPECT_TRUE(one.remove("theirs").value());
  file().wait(soon);
  EXPECT_GE(std::chrono::steady_clock::now(), soon);
}

TEST_F(InitFileTest, IsARegularFile) {
  const std::string expected = "init_method=file://" + path() + ": it is no regular file";
  std::filesystem::create_directory(path());
  InitFile one = file();
  EXPECT_EQ(refusal_of(one), expected);
  std::filesystem::remove(path());
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  EXPECT_EQ(refusal_of(one), expected);
  std::filesystem::remove(path());
  std::filesystem::create_symlink(folder_ / "elsewhere", path());
  EXPECT_EQ(refusal_of(one), expected);
}

TEST_F(InitFileTest, SaysWhatIsWrongWithTheFolder) {
  const std::string named = "init_method=file:///x: ";
  InitFile nowhere(folder_ / "no" / "file", "init_method=file:///x");
  EXPECT_EQ(refusal_of(nowhere), named + "there is no folder " + (folder_ / "no").string());
  EXPECT_FALSE(nowhere.create("mine"));
  write("a file");
  InitFile below_a_file(folder_ / "file" / "file", "init_method=file:///x");
  EXPECT_EQ(refusal_of(below_a_file), named + "there is no folder " + path());
  // Nobody makes files there, root neither.
  InitFile in_proc("/proc/ddprun-init", "init_method=file:///x");
  const auto made = in_proc.create("mine");
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().message().find(named + "write to the folder /proc: "), 0)
      << made.error().message();
}

}  // namespace
}  // namespace ddprun::worker
