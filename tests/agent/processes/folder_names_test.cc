// The names in a folder.
#include "agent/processes/folder_names.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

namespace ddprun::agent {
namespace {

std::set<std::string> set_of(const std::vector<std::string>& names) {
  return {names.begin(), names.end()};
}

TEST(NamesIn, AreThoseThatBeginSo) {
  const std::filesystem::path folder =
      testing::TempDir() + "/names_in_" + std::to_string(::getpid());
  std::filesystem::create_directory(folder);
  for (const char* name : {"one", "one-more", "two", ".hidden"}) std::ofstream(folder / name);
  EXPECT_EQ(set_of(names_in(folder, "one")), (std::set<std::string>{"one", "one-more"}));
  EXPECT_EQ(set_of(names_in(folder)), (std::set<std::string>{"one", "one-more", "two", ".hidden"}));
  std::filesystem::remove_all(folder);
}

TEST(NamesIn, OfNoFolderAreNone) { EXPECT_TRUE(names_in("/nowhere/at/all").empty()); }

}  // namespace
}  // namespace ddprun::agent
