#include "launcher/scheduler/cpu_quota.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temporary_folder.h"

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;

class CpuQuota : public FolderTest {
 protected:
  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((folder / path).parent_path());
    std::ofstream(folder / path) << text;
  }
};

TEST_F(CpuQuota, IsNothingWithoutCgroupsOrLimits) {
  EXPECT_EQ(cpu_quota(folder), std::nullopt);
  write("proc/self/cgroup", "0::/a/b\n");
  EXPECT_EQ(cpu_quota(folder), std::nullopt);
  write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(cpu_quota(folder), std::nullopt);
}

TEST_F(CpuQuota, IsTheSmallestOfVersion2) {
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/b/cpu.max", "800000 100000\n");
  EXPECT_EQ(cpu_quota(folder), 8);
  write("sys/fs/cgroup/a/cpu.max", "350000 100000\n");
  EXPECT_EQ(cpu_quota(folder), 3);
  write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(cpu_quota(folder), 1);
}

TEST_F(CpuQuota, IsThatOfVersion1) {
  for (const char* place : {"cpu", "cpu,cpuacct"}) {
    const std::string mount = std::string("sys/fs/cgroup/") + place;
    write("proc/self/cgroup", "4:memory:/m\n3:cpu,cpuacct:/job_1\n0::/\n");
    write(mount + "/job_1/cpu.cfs_period_us", "100000\n");
    write(mount + "/job_1/cpu.cfs_quota_us", "-1\n");
    EXPECT_EQ(cpu_quota(folder), std::nullopt);
    write(mount + "/job_1/cpu.cfs_quota_us", "400000\n");
    EXPECT_EQ(cpu_quota(folder), 4);
    fs::remove_all(folder / "sys");
  }
}

// A container sees its own cgroup at the mount, and may be told a path that is not there.
TEST_F(CpuQuota, IsFoundAtTheMountOfAContainer) {
  write("proc/self/cgroup", "3:cpuset:/x\n2:cpu:/docker/0123\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n");
  EXPECT_EQ(cpu_quota(folder), 2);
}

}  // namespace
}  // namespace ddprun::launcher
