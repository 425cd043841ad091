// The lock of a job is free only when its launcher is gone.
#include "agent/processes/owner_lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "agent/processes/job_cookie.h"
#include "agent/processes/scratch_folder.h"

namespace ddprun::agent {
namespace {

namespace fs = std::filesystem;

// Other jobs may run on the host: only this test's cookie counts.
bool is_gone(const std::string& cookie) {
  for (const GoneJob& job : take_gone_jobs()) {
    if (job.cookie == cookie) return true;
  }
  return false;
}

class OwnerLock : public testing::Test {
 protected:
  void TearDown() override { fs::remove_all(path()); }
  std::string path() const { return std::string(kScratchBase) + "/" + kLockPrefix + cookie; }
  const std::string cookie = make_job_cookie().text();
};

TEST_F(OwnerLock, IsNotFreeWhileItsOwnerLives) {
  auto lock = take_owner_lock(cookie);
  ASSERT_TRUE(lock) << lock.error().message();
  EXPECT_FALSE(is_gone(cookie));
  struct stat facts {};
  ASSERT_EQ(::stat(path().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600U);
  lock->close();
  EXPECT_TRUE(is_gone(cookie));
  EXPECT_TRUE(is_gone(cookie));  // the first look gave it back
  remove_owner_lock(cookie);
  EXPECT_FALSE(is_gone(cookie));  // absent: that proves nothing
}

TEST_F(OwnerLock, IsHeldByAForkedProcessToo) {
  auto lock = take_owner_lock(cookie);
  ASSERT_TRUE(lock) << lock.error().message();
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  lock->close();
  EXPECT_FALSE(is_gone(cookie));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(is_gone(cookie));
}

TEST_F(OwnerLock, OneSweepAtATimeWorksOnAJob) {
  take_owner_lock(cookie).value().close();
  const std::vector<GoneJob> first = take_gone_jobs();
  EXPECT_FALSE(is_gone(cookie));
}

TEST_F(OwnerLock, IsAPlainFileOfOurs) {
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  EXPECT_FALSE(is_gone(cookie));
  fs::remove(path());
  fs::create_symlink("/proc/self/status", path());
  EXPECT_FALSE(is_gone(cookie));
  fs::remove(path());
  fs::create_directory(path());
  EXPECT_FALSE(is_gone(cookie));
}

// A shorter name would be the beginning of another job's.
TEST_F(OwnerLock, HasAWholeCookieInItsName) {
  for (const std::string& wrong :
       {cookie.substr(0, cookie.size() - 1), cookie + "0", cookie + "-1"}) {
    const std::string at = std::string(kScratchBase) + "/" + kLockPrefix + wrong;
    ::close(::open(at.c_str(), O_CREAT | O_RDWR, 0600));
    EXPECT_FALSE(is_gone(wrong)) << wrong;
    EXPECT_FALSE(is_gone(cookie)) << wrong;
    fs::remove(at);
  }
}

TEST(GoneJob, OfAUserOwnsNothingOfOthers) {
  const GoneJob of_root{"c", 0, FileHandle()};
  const GoneJob of_user{"c", 1000, FileHandle()};
  EXPECT_TRUE(of_root.may_own(0) && of_root.may_own(1000));  // workers may have given up root
  EXPECT_TRUE(of_user.may_own(1000));
  EXPECT_FALSE(of_user.may_own(0) || of_user.may_own(1001));
}

}  // namespace
}  // namespace ddprun::agent
