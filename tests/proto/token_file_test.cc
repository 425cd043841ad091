#include "proto/token_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "base/file_handle.h"

namespace ddprun {
namespace {

constexpr uid_t kMe = 1000;

SecretFacts facts(uid_t owner, mode_t mode) {
  return {.owner = owner, .group = 50, .mode = mode, .self = kMe, .groups = {1000}};
}

TEST(SecretFile, IsForItsOwnerAlone) {
  for (const mode_t mode : {0600U, 0400U}) EXPECT_TRUE(is_secret(facts(kMe, mode))) << mode;
  for (const mode_t mode : {0640U, 0604U, 0644U, 0660U, 0620U, 0666U, 0610U})
    EXPECT_FALSE(is_secret(facts(kMe, mode))) << mode;
  EXPECT_FALSE(is_secret(facts(kMe + 1, 0600)));
  EXPECT_TRUE(is_secret(facts(0, 0600)));
  EXPECT_FALSE(is_secret(facts(0, 0644)));
}

TEST(SecretFile, RootMayHaveMadeItForOurGroup) {
  SecretFacts shared = facts(0, 0640);
  EXPECT_FALSE(is_secret(shared));
  shared.groups.push_back(50);
  EXPECT_TRUE(is_secret(shared));
  shared.mode = 0440;
  EXPECT_TRUE(is_secret(shared));
  for (const mode_t mode : {0644U, 0660U}) {
    shared.mode = mode;
    EXPECT_FALSE(is_secret(shared)) << mode;
  }
  shared.owner = kMe;
  shared.mode = 0640;
  EXPECT_FALSE(is_secret(shared)) << "as ssh has it";
}

// Kubernetes gives a secret the mode 0644, on a tmpfs that is mounted read-only in the pod.
TEST(SecretFile, APlatformMayHaveMountedIt) {
  SecretFacts mounted = facts(0, 0644);
  mounted.is_read_only_memory = true;
  EXPECT_TRUE(is_secret(mounted));
  mounted.owner = kMe;
  EXPECT_FALSE(is_secret(mounted));
}

TEST(SecretFile, SaysWhatToType) {
  std::string path = (std::filesystem::temp_directory_path() / "ddprun_secret_XXXXXX").string();
  const FileHandle file(::mkstemp(path.data()));
  EXPECT_EQ(exposure_of(file.get(), path), std::nullopt);
  ::fchmod(file.get(), 0644);
  EXPECT_EQ(exposure_of(file.get(), path),
            "others can read it (mode 0644); type: chmod 600 '" + path + "'");
  ::unlink(path.c_str());
}

}  // namespace
}  // namespace ddprun
