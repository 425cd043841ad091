#include "base/memory_cgroup.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"

namespace ddprun {
namespace {

TEST(MemoryCgroup, LessIsLeftThanTheHostHas) {
  const auto left = memory_left();
  ASSERT_TRUE(left.has_value());
  const auto pages = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES));
  EXPECT_GT(*left, 0U);
  EXPECT_LT(*left, pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)));
}

TEST_F(FolderTest, TheLowestLimitAboveCounts) {
  const auto set = [](const std::filesystem::path& place, const char* most, const char* used) {
    std::filesystem::create_directories(place);
    std::ofstream(place / "memory.max") << most;
    std::ofstream(place / "memory.current") << used;
    std::ofstream(place / "memory.stat") << "anon 7\ninactive_file 60\nactive_file 40\n";
  };
  const auto left = [&](const std::string& cgroup) {
    return memory_left_in({folder.string() + cgroup, true}, cgroup.empty() ? "/" : cgroup);
  };
  set(folder / "a/b", "max", "500");
  EXPECT_EQ(left("/a/b"), std::nullopt);
  set(folder / "a", "5000", "2100");
  EXPECT_EQ(left("/a/b"), 3000U) << "file pages count as left";
  set(folder, "3000", "2100");
  EXPECT_EQ(left("/a/b"), 1000U) << "a container's own limit is that of the uppermost cgroup";
  EXPECT_EQ(left(""), 1000U);
  set(folder / "a/b", "600", "900");
  EXPECT_EQ(left("/a/b"), 0U);
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
}  // namespace ddprun
