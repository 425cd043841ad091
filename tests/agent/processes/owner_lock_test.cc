// The lock of a job is free only when its launcher is gone.
#include "agent/processes/owner_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
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

// In a /dev/shm of its own: other jobs on this host must not read these names.
TEST_F(OwnerLock, AreNotLookedForAmongAllNamesOfOthers) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root may give a file to another user";
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", kScratchBase, "tmpfs", 0, nullptr) != 0)
      ::_exit(77);
    for (int i = 0; i < 12'000; ++i) {
      const std::string name =
          fmt::format("{}/{}1-{}-1-{:016x}", kScratchBase, kLockPrefix, 1'000'000 + i, i);
      if (::close(::open(name.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0600)) != 0 ||
          ::chown(name.c_str(), 65534, 65534) != 0)
        ::_exit(1);
    }
    const auto begin = std::chrono::steady_clock::now();
    const std::size_t taken = take_gone_jobs().size();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    std::printf("12,000 names of another user: %.1f ms, %zu taken\n", took.count(), taken);
    std::fflush(stdout);
    take_owner_lock(cookie).value().close();
    bool found = false;  // a look at a sixth of them
    for (int i = 0; i < 1'000 && !found; ++i) found = is_gone(cookie);
    ::_exit(taken == 0 && found ? 0 : 2);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
    GTEST_SKIP() << "no mount namespace can be made";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
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
  const GoneJob of_root{.cookie = "c", .owner = 0, .lock = FileHandle()};
  const GoneJob of_user{.cookie = "c", .owner = 1000, .lock = FileHandle()};
  EXPECT_TRUE(of_root.may_own(0) && of_root.may_own(1000));  // workers may have given up root
  EXPECT_TRUE(of_user.may_own(1000));
  EXPECT_FALSE(of_user.may_own(0) || of_user.may_own(1001));
}

}  // namespace
}  // namespace ddprun::agent
