#include "agent/processes/memory_cgroup.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "tests/agent/temporary_folder.h"

namespace ddprun::agent {
namespace {

TEST(MemoryCgroup, LessIsLeftThanTheHostHas) {
  const auto left = memory_left();
  ASSERT_TRUE(left.has_value());
  const auto pages = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES));
  EXPECT_GT(*left, 0U);
  EXPECT_LT(*left, pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)));
}

TEST_F(FolderTest, CgroupNumbersAndTheirAbsence) {
  const std::string path = (folder / "limit").string();
  EXPECT_EQ(read_cgroup_number(path), std::nullopt);
  const auto read = [&](const char* text) {
    std::ofstream(path) << text;
    return read_cgroup_number(path);
  };
  EXPECT_EQ(read("1048576\n"), 1048576U);
  EXPECT_EQ(read("max\n"), std::nullopt);
  EXPECT_EQ(read("9223372036854771712\n"), std::nullopt) << "version 1's word for no limit";
}

}  // namespace
}  // namespace ddprun::agent
