#include "agent/processes/scratch_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace ddprun::agent {
namespace {

TEST(ScratchFolder, IsThisUsersAndIsRemovedWithAllInIt) {
  const std::string cookie = "1-" + std::to_string(::getpid()) + "-6-scratch";
  const auto folder = make_scratch_folder(cookie);
  ASSERT_TRUE(folder.has_value()) << folder.error().message();
  EXPECT_EQ(*folder, std::string("/dev/shm/ddprun_scratch-") + cookie);
  struct stat facts {};
  ASSERT_EQ(::stat(folder->c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777U, 0700U);
  std::ofstream(*folder + "/file") << "text";
  const auto again = make_scratch_folder(cookie);
  ASSERT_FALSE(again.has_value()) << "a folder that somebody else has made is not used";
  EXPECT_NE(again.error().message().find(*folder), std::string::npos);
  remove_scratch_folder(cookie);
  EXPECT_FALSE(std::filesystem::exists(*folder));
  remove_scratch_folder(cookie);
}

TEST(ScratchFolder, OfNoJobIsNeverRemoved) { EXPECT_DEATH(remove_scratch_folder(""), "empty"); }

}  // namespace
}  // namespace ddprun::agent
