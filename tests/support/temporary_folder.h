// A folder for one test, removed with it.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace ddprun {

inline std::string content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class FolderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "ddprun_files_XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    folder = path;
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  std::filesystem::path folder;
};

}  // namespace ddprun
