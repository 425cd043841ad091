#include "launcher/scheduler/shared_token.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace ddprun::launcher {
namespace {

EnvLookup variables(std::map<std::string, std::string, std::less<>> all) {
  return [all = std::move(all)](std::string_view name) -> std::optional<std::string> {
    const auto found = all.find(name);
    return found == all.end() ? std::nullopt : std::optional(found->second);
  };
}

TEST(SharedToken, IsNamedByTheSchedulersJob) {
  EXPECT_EQ(shared_token_path(variables({{"HOME", "/h"}})), std::nullopt);
  EXPECT_EQ(shared_token_path(variables({{"SLURM_JOB_ID", "7"}})), std::nullopt);
  EXPECT_EQ(shared_token_path(variables({{"HOME", "h"}, {"SLURM_JOB_ID", "7"}})), std::nullopt);
  EXPECT_EQ(shared_token_path(variables(
                {{"HOME", "/h"}, {"SLURM_JOB_ID", "7"}, {"SLURM_CLUSTER_NAME", "a/../b"}})),
            "/h/.ddprun/slurm-a-..-b-7");
  EXPECT_EQ(shared_token_path(
                variables({{"HOME", "/h"}, {"SLURM_JOB_ID", "8"}, {"SLURM_HET_JOB_ID", "7"}})),
            "/h/.ddprun/slurm--7");
  EXPECT_EQ(shared_token_path(variables({{"HOME", "/h"}, {"PMIX_NAMESPACE", "prterun-a@1"}})),
            "/h/.ddprun/mpi-prterun-a-1");
}

struct SharedTokenFiles : testing::Test {
  SharedTokenFiles() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ddprun_home_XXXXXX").string();
    home = ::mkdtemp(pattern.data());
  }
  ~SharedTokenFiles() override { std::filesystem::remove_all(home); }
  std::string home;
  std::string path() const { return home + "/.ddprun/slurm--7"; }
};

TEST_F(SharedTokenFiles, AreMadeOnce) {
  EXPECT_EQ(read_shared_token(path()), std::nullopt);
  const auto token = make_shared_token(path());
  ASSERT_TRUE(token.has_value());
  EXPECT_EQ(token->size(), 64U);
  EXPECT_EQ(make_shared_token(path()), token);
  EXPECT_EQ(read_shared_token(path()), token);
}

TEST_F(SharedTokenFiles, OfJobsThatEndedLongAgoAreRemoved) {
  ASSERT_TRUE(make_shared_token(path()).has_value());
  const std::string mine = home + "/.ddprun/notes";
  std::ofstream(mine) << "text";
  const auto then = std::filesystem::file_time_type::clock::now() - std::chrono::hours(31 * 24);
  for (const std::string& file : {path(), mine}) std::filesystem::last_write_time(file, then);
  ASSERT_TRUE(make_shared_token(home + "/.ddprun/slurm--8").has_value());
  EXPECT_FALSE(std::filesystem::exists(path()));
  EXPECT_TRUE(std::filesystem::exists(mine));
}

TEST_F(SharedTokenFiles, OfOthersAreNotUsed) {
  ASSERT_TRUE(make_shared_token(path()).has_value());
  std::filesystem::permissions(path(), std::filesystem::perms(0640));
  EXPECT_EQ(make_shared_token(path()), std::nullopt);
  std::filesystem::remove(path());
  std::filesystem::create_symlink("/etc/passwd", path());
  EXPECT_EQ(make_shared_token(path()), std::nullopt);
  std::filesystem::remove(path());
  EXPECT_EQ(::mkfifo(path().c_str(), 0600), 0);
  EXPECT_EQ(make_shared_token(path()), std::nullopt);
  std::filesystem::remove(path());
  std::filesystem::permissions(home + "/.ddprun", std::filesystem::perms(0777));
  EXPECT_EQ(make_shared_token(path()), std::nullopt);
  std::filesystem::remove_all(home + "/.ddprun");
  std::filesystem::create_symlink("/tmp", home + "/.ddprun");
  EXPECT_EQ(make_shared_token(path()), std::nullopt);
}

}  // namespace
}  // namespace ddprun::launcher
