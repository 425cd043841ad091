#include "agent/preemption/notice_look.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"

namespace ddprun::agent {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kEvery{1};

struct NoticeLookTest : FolderTest {
  void write(const std::string& text) const { std::ofstream(path()) << text; }
  std::string path() const { return folder / "notice"; }
  // Runs the loop until the file has given notice, or for so many looks.
  bool is_told(NoticeLook& look, int looks) {
    look.begin();
    loop.restart();
    loop.run_for(kEvery * looks);
    return times > 0;
  }

  asio::io_context loop;
  int times = 0;
  const std::function<void()> noticed = [this] {
    ++times;
    loop.stop();
  };
};

// Long enough for a file that is there to be seen; a notice ends it at once.
constexpr int kAllTheTime = 60'000;
constexpr int kSomeLooks = 20;

TEST_F(NoticeLookTest, AFileThatAppearsIsANotice) {
  NoticeLook look(loop, path(), noticed, kEvery);
  EXPECT_FALSE(is_told(look, kSomeLooks));
  write("");
  EXPECT_TRUE(is_told(look, kAllTheTime));
}

TEST_F(NoticeLookTest, AFileOfAnOlderJobIsNoneUntilItChanges) {
  write("older");
  NoticeLook look(loop, path(), noticed, kEvery);
  EXPECT_FALSE(is_told(look, kSomeLooks));
  std::filesystem::remove(path());
  EXPECT_FALSE(is_told(look, kSomeLooks));
  write("anew");
  EXPECT_TRUE(is_told(look, kAllTheTime));
}

TEST_F(NoticeLookTest, NoticeIsGivenOnce) {
  NoticeLook look(loop, path(), noticed, kEvery);
  EXPECT_FALSE(is_told(look, kSomeLooks));
  write("a");
  EXPECT_TRUE(is_told(look, kAllTheTime));
  write("abc");
  loop.restart();
  loop.run_for(kEvery * kSomeLooks);
  EXPECT_EQ(times, 1);
}

TEST_F(NoticeLookTest, NobodyLooksAfterTheEndOrWithoutAPath) {
  NoticeLook none(loop, "", noticed, kEvery);
  none.begin();
  NoticeLook look(loop, path(), noticed, kEvery);
  look.begin();
  look.end();
  write("a");
  EXPECT_EQ(loop.run(), 1U) << "the alarm that was set back alone";
  EXPECT_EQ(times, 0);
}

TEST_F(NoticeLookTest, ALinkIsFollowedAndAFifoIsNotWaitedFor) {
  NoticeLook look(loop, path(), noticed, kEvery);
  std::filesystem::create_symlink(folder / "other", path());
  EXPECT_FALSE(is_told(look, kSomeLooks)) << "it leads nowhere";
  ASSERT_EQ(::mkfifo((folder / "other").c_str(), 0600), 0);
  EXPECT_TRUE(is_told(look, kAllTheTime));
}

}  // namespace
}  // namespace ddprun::agent
